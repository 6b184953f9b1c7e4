"""Admission: how many tickets a rollout rank claims now.

Pure. Asked by the rollout loop in every turn; the queue's gate withholds tickets of its own accord beside this.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

TOKENS_PER_REQUEST = 4096
"""A request of many prompts is answered when its longest sample is done, so long generations go out in small ones."""

MAX_REQUESTS = 32
"""At an engine that takes many prompts at once: enough to keep its batch full, few enough for one Python process."""

SCORED_PER_GENERATED = 1
"""Groups that may wait for their scores, for each that may be generated. More would only be kept in memory: the gate
opens nothing before they are trained."""


@dataclass(frozen=True, slots=True)
class RolloutShape:
    """What of a job decides how much one of its rollout ranks takes."""

    batch_size: int
    samples_per_prompt: int
    max_new_tokens: int
    max_staleness: int
    num_ranks: int


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How much one rank works on at a time."""

    samples_in_flight: int
    """Sent to the engine and not answered."""
    tickets_in_work: int
    """Groups that are generated or scored; all of them are in memory, and their versions age."""
    samples_per_ticket: int
    tickets_per_request: int


def limits_of(shape: RolloutShape, concurrency: int, prompts_per_request: int | None) -> AdmissionLimits:
    """The limits of a rank whose engine runs `concurrency` samples at once.

    No rank takes more than its share of the rollouts that may be open together: else the first to ask would have all,
    and the other engines nothing.
    """
    share = ceil(shape.batch_size / shape.num_ranks)
    open_share = ceil(shape.batch_size * (1 + shape.max_staleness) / shape.num_ranks)
    return AdmissionLimits(
        samples_in_flight=min(concurrency, open_share * shape.samples_per_prompt),
        tickets_in_work=open_share * (1 + SCORED_PER_GENERATED),
        samples_per_ticket=shape.samples_per_prompt,
        tickets_per_request=_tickets_per_request(shape, share, prompts_per_request),
    )


def _tickets_per_request(shape: RolloutShape, share: int, prompts_per_request: int | None) -> int:
    by_tokens = TOKENS_PER_REQUEST // (shape.samples_per_prompt * shape.max_new_tokens)
    wanted = max(1, min(by_tokens, ceil(share / 2)), ceil(share / MAX_REQUESTS))
    return wanted if prompts_per_request is None else min(wanted, prompts_per_request)


def tickets_to_claim(limits: AdmissionLimits, samples_in_flight: int, tickets_in_work: int) -> int:
    """Tickets to ask for; 0 while the engine has enough, or too much waits to be scored.

    A group is begun whole, so that up to one group's samples more than the limit are in flight: a slot that waited
    for room for a whole group would be idle.
    """
    free = limits.samples_in_flight - samples_in_flight
    return max(0, min(ceil(free / limits.samples_per_ticket), limits.tickets_in_work - tickets_in_work))
