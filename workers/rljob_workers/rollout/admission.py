"""Admission: how many tickets a rollout rank claims now, and which of their prompts are short enough.

Asked by the rollout loop in every turn; the queue's gate withholds tickets of its own accord beside this. A prompt that
is too long is passed over and counted, and another is drawn: that is no attempt of its group. Or, as the job says, its
last tokens are taken, or it ends the job.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

from rljob_api.spec.rollout import GroupOrder, LongPrompts, RolloutSpec
from rljob_workers.data.prompts import DrawnPrompts, Prompt
from rljob_workers.dcs.membership.counters import PASSED_OVER, TRUNCATED
from rljob_workers.engines.base import Sample
from rljob_workers.transfer_queue.errors import TicketLost
from rljob_workers.transfer_queue.types import Ticket

TOKENS_PER_REQUEST = 4096
"""A request of many prompts is answered when its longest sample is done, and its groups are scored then: long
generations go out in small ones."""


MAX_REQUESTS = 32
"""At an engine that takes many prompts at once: enough to keep its batch full, few enough for one Python process."""


SCORED_PER_GENERATED = 1
"""Groups that may wait for their scores, for each that may be generated. More would only be held in memory: the gate
opens nothing before they are trained."""


@dataclass(frozen=True, slots=True)
class RolloutShape:
    """What of a job and of its engines decides how much one of its rollout ranks takes."""

    batch_size: int
    samples_per_ticket: int
    """Drawn for each: its group's, and a greedy one in jobs that need it."""
    max_new_tokens: int
    capacity: int
    """Groups that all of them may have begun, and that are not trained."""
    most_ranks: int
    """Ranks of the role that the job may have."""
    concurrency: int
    """Samples that one engine runs at once."""
    prompts_per_request: int | None = None
    """Of `prompts_per_request`."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How much one rank works on at a time."""

    samples_in_flight: int
    """Sent to the engine and not ended."""
    tickets_in_work: int
    """Groups that are generated or scored; all of them are in memory, and their versions age."""
    samples_per_ticket: int
    tickets_per_request: int


def limits_of(shape: RolloutShape, role_ranks: int | None = None) -> AdmissionLimits:
    """The limits of one of `role_ranks` ranks; None: as many as the job may have.

    No rank takes more than its share of the rollouts that may be open together: else the first to ask would have all,
    and the other engines nothing.
    """
    num_ranks = role_ranks or shape.most_ranks
    share = ceil(shape.batch_size / num_ranks)
    open_share = ceil(shape.capacity / num_ranks)
    return AdmissionLimits(
        samples_in_flight=min(shape.concurrency, open_share * shape.samples_per_ticket),
        tickets_in_work=open_share * (1 + SCORED_PER_GENERATED),
        samples_per_ticket=shape.samples_per_ticket,
        tickets_per_request=_tickets_per_request(shape, share),
    )


def prompts_per_request(rollout: RolloutSpec, engine_takes: int | None) -> int | None:
    """Most prompts of one request to an engine that takes so many; None: as many as are useful.

    Where groups are put in the order in which they finish, or carried on, each is a request of its own: all that came
    with one would be scored and put when the slowest of them is generated.
    """
    is_alone = rollout.order is GroupOrder.SWAP or rollout.partial is not None
    return 1 if is_alone else engine_takes


def _tickets_per_request(shape: RolloutShape, share: int) -> int:
    by_tokens = TOKENS_PER_REQUEST // (shape.samples_per_ticket * shape.max_new_tokens)
    wanted = max(1, min(by_tokens, ceil(share / 2)), ceil(share / MAX_REQUESTS))
    return wanted if shape.prompts_per_request is None else min(wanted, shape.prompts_per_request)


def tickets_to_claim(limits: AdmissionLimits, samples_in_flight: int, tickets_in_work: int) -> int:
    """Tickets to ask for; 0 while the engine has enough, or too much waits to be scored.

    A group is begun whole, so that up to one group's samples more than the limit are in flight: a slot that waited
    for room for a whole group would be idle.
    """
    free = limits.samples_in_flight - samples_in_flight
    return max(0, min(ceil(free / limits.samples_per_ticket), limits.tickets_in_work - tickets_in_work))


_LOG = logging.getLogger(__name__)


MAX_IN_A_ROW = 1000
"""A data set with fewer than one prompt in a hundred that fits would have to be bad luck indeed to get here."""


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The longest prompt that is generated for."""

    tokens: int
    field: str
    """The field of the manifest to change."""
    cure: str
    then: LongPrompts = LongPrompts.DROP
    """What becomes of longer ones."""

    @classmethod
    def of(cls, max_prompt_tokens: int | None, positions: int, then: LongPrompts = LongPrompts.DROP) -> PromptLimit:
        """Of a job and its engine's positions, one of which is for the response."""
        if max_prompt_tokens is not None and max_prompt_tokens < positions:
            cure = "Raise maxPromptTokens, or use shorter prompts."
            return cls(max_prompt_tokens, "rollout.maxPromptTokens", cure, then)
        cure = f"The model has {positions} positions for prompt and response: use shorter prompts, or a longer model."
        return cls(positions - 1, "data.prompts", cure, then)


class PassingOver(Protocol):
    """What is needed of a `TransferQueueClient`."""

    def pass_over(self, ticket: Ticket, /) -> Ticket:
        """The same group with the next prompt. Raises TicketLost."""
        ...


@dataclass(frozen=True, slots=True)
class PromptedTicket:
    """A ticket and the prompt that its group is generated for."""

    ticket: Ticket
    prompt: Prompt
    carried: tuple[Sample, ...] = ()
    """What there is of each of its samples, where it was begun before (`rollout.partial`)."""


class FittingPrompts:
    """Exchanges prompts until all fit."""

    def __init__(
        self, queue: PassingOver, source: DrawnPrompts, limit: PromptLimit, counters: MutableMapping[str, float]
    ) -> None:
        """`counters`: where prompts that were passed over are counted."""
        self._queue = queue
        self._source = source
        self._limit = limit
        self._counters = counters
        self._in_a_row = 0

    def of(self, tickets: Sequence[Ticket]) -> list[PromptedTicket]:
        """The tickets with prompts that fit; without those that came back meanwhile.

        Raises ValueError where nothing fits.
        """
        return [fitting for ticket in tickets if (fitting := self._exchanged(ticket)) is not None]

    def _exchanged(self, ticket: Ticket) -> PromptedTicket | None:
        while len((prompt := self._source.at(ticket.prompt_index)).token_ids) > self._limit.tokens:
            if self._limit.then is LongPrompts.TRUNCATE:
                self._counters[TRUNCATED] = self._counters.get(TRUNCATED, 0) + 1
                return PromptedTicket(ticket, replace(prompt, token_ids=prompt.token_ids[-self._limit.tokens :]))
            self._count(prompt)
            try:
                ticket = self._queue.pass_over(ticket)
            except TicketLost:
                return None
        self._in_a_row = 0
        return PromptedTicket(ticket, prompt)

    def _count(self, prompt: Prompt) -> None:
        limit, length = self._limit, len(prompt.token_ids)
        if limit.then is LongPrompts.REFUSE:
            raise ValueError(
                f"rollout.longPrompts: Refuse, and prompt {prompt.index}, {prompt.text[:80]!r}, has {length} tokens,"
                f" which is more than {limit.tokens} ({limit.field}). {limit.cure}"
            )
        self._in_a_row += 1
        if self._in_a_row >= MAX_IN_A_ROW:
            raise ValueError(
                f"{limit.field}: {MAX_IN_A_ROW} prompts in a row have more than {limit.tokens} tokens, the last"
                f" {length}. {limit.cure}"
            )
        passed = int(self._counters.get(PASSED_OVER, 0)) + 1
        self._counters[PASSED_OVER] = passed
        if passed & (passed - 1) == 0:  # the first, and then ever more rarely
            _LOG.warning(
                "prompts passed over so far: %d, since they have more than %d tokens (%s); the last, prompt %d, has %d",
                passed,
                limit.tokens,
                limit.field,
                prompt.index,
                length,
            )
