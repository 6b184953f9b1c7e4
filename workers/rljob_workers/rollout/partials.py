"""Saves what grows of groups in work, and reads what others saved of the groups that this rank goes on with.

For the rollout loop, from its own thread, where the job has `rollout.partial`. What is saved was made by weights that
the engine was proven to have: nothing else is ever carried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from rljob_workers.dcs.membership.counters import SAMPLES_CARRIED, TOKENS_CARRIED
from rljob_workers.engines.base import FinishReason, Sample
from rljob_workers.rollout.admission import PromptedTicket
from rljob_workers.rollout.carried import beginning, pack_group, sampling_digest, unpack_group
from rljob_workers.rollout.continuing import ContinuingStage
from rljob_workers.rollout.engine_access import RankEngine
from rljob_workers.rollout.sampling import GenerateConfig
from rljob_workers.rollout.trajectory import place_of
from rljob_workers.rollout.verification import WeightProof
from rljob_workers.transfer_queue.saved_partials import SavedPartials
from rljob_workers.transfer_queue.types import GroupSoFar, Ticket

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartialConfig:
    """How a job saves."""

    save_seconds: float
    max_tokens: int
    """Of a sample."""


class Partials:
    """Of one rank.

    tickets = partials.continued(tickets)   before their work begins
    partials.save_if_due(tickets, begun)    every turn
    partials.save(tickets, begun)           before they are handed back
    partials.forget(tickets)                their work is over
    """

    def __init__(
        self,
        config: PartialConfig,
        generate: GenerateConfig,
        stage: ContinuingStage,
        queue: SavedPartials,
        engine: RankEngine,
        proof: WeightProof,
        counters: MutableMapping[str, float],
        clock: Callable[[], float],
    ) -> None:
        """`counters`: where what was carried is counted."""
        self._config = config
        self._generate = generate
        self._stage = stage
        self._queue = queue
        self._engine = engine
        self._proof = proof
        self._counters = counters
        self._clock = clock
        self._saves_at = clock() + config.save_seconds
        self._saved: dict[int, tuple[int, int]] = {}
        """By ticket, how many tokens and ended samples were saved last."""

    def continued(self, tickets: Sequence[PromptedTicket]) -> list[PromptedTicket]:
        """The tickets with what there is of their samples."""
        saved = self._queue.read([each.ticket for each in tickets])
        return [self._continued(each, saved[each.ticket.id]) if each.ticket.id in saved else each for each in tickets]

    def save_if_due(self, tickets: Iterable[Ticket], begun: Mapping[int, int]) -> None:
        """Saves where the last time is long enough ago."""
        if self._clock() >= self._saves_at:
            self.save(tickets, begun)
            self._saves_at = self._clock() + self._config.save_seconds

    def save(self, tickets: Iterable[Ticket], begun: Mapping[int, int]) -> None:
        """Saves what has grown of these tickets. `begun`: by ticket, `proof.num_voided` when its work began.

        What no server takes, or another rank has now, costs the tokens that are not saved.
        """
        grown: list[GroupSoFar] = []
        sizes: list[tuple[int, int]] = []
        for ticket, digest, samples in self._engine.call(self._look([ticket.id for ticket in tickets])):
            size = (
                sum(len(one.output_ids) for one in samples),
                sum(not one.goes_on for one in samples),
            )
            if size[0] == 0 or self._saved.get(ticket.id) == size:
                continue
            made = [one for one in samples if one.spans]
            group = GroupSoFar(
                ticket,
                pack_group(samples, digest),
                [min((span.weight for span in one.spans), key=place_of) for one in made],
                [max((span.weight for span in one.spans), key=place_of) for one in made],
            )
            if not self._proof.awaited_by([group]) and not self._proof.voids([group], begun[ticket.id]):
                grown.append(group)
                sizes.append(size)
        if not grown:
            return
        for group, size, is_saved in zip(grown, sizes, self._queue.save(grown), strict=True):
            if is_saved:
                self._saved[group.ticket.id] = size

    def forget(self, tickets: Iterable[Ticket]) -> None:
        """Their work here is over; what was saved of them is the queue's."""
        ids = [ticket.id for ticket in tickets]
        for number in ids:
            self._saved.pop(number, None)
        self._engine.call(self._take_out(ids))

    async def _look(self, ids: Sequence[int]) -> list[tuple[Ticket, int, list[Sample]]]:
        """In the engine's event loop, where samples grow."""
        groups = [self._stage.in_work[number] for number in ids if number in self._stage.in_work]
        limit = self._config.max_tokens
        return [
            (group.ticket, group.digest, [beginning(sample.now(), limit) for sample in group.samples])
            for group in groups
        ]

    async def _take_out(self, ids: Sequence[int]) -> None:
        for number in ids:
            self._stage.in_work.pop(number, None)

    def _continued(self, each: PromptedTicket, saved: bytes) -> PromptedTicket:
        params = self._generate.params_of(each)
        try:
            digest = sampling_digest(each.prompt.token_ids, params)
            samples = unpack_group(saved, params.num_samples, digest)
        except ValueError as error:
            _log.warning("prompt %d is begun anew: %s", each.prompt.index, error)
            return each
        first = (beginning(sample, self._config.max_tokens) for sample in samples)
        carried = tuple(_ended_if_full(sample, params.max_new_tokens) for sample in first)
        tokens = [len(sample.output_ids) for sample in carried]
        self._count(TOKENS_CARRIED, sum(tokens))
        self._count(SAMPLES_CARRIED, sum(number > 0 for number in tokens))
        return replace(each, carried=carried)

    def _count(self, name: str, number: int) -> None:
        self._counters[name] = self._counters.get(name, 0) + number


def _ended_if_full(sample: Sample, max_new_tokens: int) -> Sample:
    """As long as it may be, it has ended."""
    is_full = sample.goes_on and len(sample.output_ids) >= max_new_tokens
    return replace(sample, finish_reason=FinishReason.LENGTH) if is_full else sample
