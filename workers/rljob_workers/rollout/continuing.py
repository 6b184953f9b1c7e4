"""Generates groups whose samples may have a beginning (`rollout.partial`), and says at any time what there is of each.

In the place of `GenerateStage` where a job has partial rollouts; without them nothing of it is used. A sample's
beginning is sent behind its prompt, as tokens to be read; the engine draws what follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from rljob_workers.engines.base import (
    NOT_BEGUN,
    Engine,
    FinishReason,
    Grown,
    Sample,
    SamplingParams,
    Shown,
    VersionSpan,
    continued,
    continued_seed,
    joined_spans,
)
from rljob_workers.rollout.admission import PromptedTicket
from rljob_workers.rollout.carried import sampling_digest
from rljob_workers.rollout.engine_calls import EngineCalls
from rljob_workers.rollout.group_rows import GeneratedGroup
from rljob_workers.rollout.sampling import GenerateConfig
from rljob_workers.rollout.trajectory import Trajectory
from rljob_workers.transfer_queue.types import Ticket


@dataclass(slots=True)
class SampleSoFar:
    """What is known of a sample that is being generated; read and changed in the engine's event loop."""

    output_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    """As of a `Sample`."""
    spans: tuple[VersionSpan, ...] = ()
    """Over all of `output_ids`."""
    finish_reason: FinishReason = FinishReason.ABORT

    def add(self, more: Sample) -> None:
        """Tokens that follow."""
        self.spans = joined_spans(self.spans, more.spans, len(self.output_ids))
        self.output_ids += more.output_ids
        self.log_probs += more.log_probs

    def settle(self, whole: Sample) -> None:
        """The sample as it ended."""
        self.output_ids, self.log_probs, self.spans = whole.output_ids, whole.log_probs, whole.spans
        self.finish_reason = whole.finish_reason

    def now(self) -> Sample:
        """What there is, which grows no more."""
        return Sample(self.output_ids[:], self.log_probs[:], self.finish_reason, self.spans)


@dataclass(frozen=True, slots=True)
class SampleInWork:
    """A sample's beginning and what follows it."""

    carried: Sample
    more: SampleSoFar = field(default_factory=SampleSoFar)

    def now(self) -> Sample:
        """What there is."""
        return continued(self.carried, self.more.now()) if self.carried.goes_on else self.carried


@dataclass(frozen=True, slots=True)
class GroupInWork:
    """A ticket's samples."""

    ticket: Ticket
    digest: int
    samples: list[SampleInWork]


@dataclass(frozen=True, slots=True)
class _Request:
    """Samples of one prompt that are drawn alike."""

    prompt: Sequence[int]
    params: SamplingParams
    so_far: Sequence[SampleSoFar]


class ContinuingStage:
    """Generates the groups of tickets, each sample in a single turn, behind what `PromptedTicket.carried` has of it."""

    def __init__(self, config: GenerateConfig, engine: Engine) -> None:
        """The parts come from their factories; nothing is opened here."""
        self._config = config
        self._engine = engine
        self.in_work: dict[int, GroupInWork] = {}
        """By ticket, of those that were begun; who owns the tickets takes them out. For the engine's event loop."""

    async def run(self, tickets: Sequence[PromptedTicket], calls: EngineCalls) -> list[GeneratedGroup]:
        """All samples of all tickets, with a greedy answer where the job has them, which is not carried.

        Raises EngineError: what there was is in `in_work`.
        """
        groups = [self._begin(each) for each in tickets]
        greedy = [SampleSoFar() for _ in tickets] if self._config.draws_greedy else []
        requests = [request for each, group in zip(tickets, groups, strict=True) for request in self._rest(each, group)]
        requests += [
            _Request(each.prompt.token_ids, self._config.greedy_of(each), [answer])
            for each, answer in zip(tickets, greedy, strict=False)
        ]
        num_asked = sum(request.params.num_samples for request in requests)
        calls.moved(num_asked - sum(len(group.samples) for group in groups) - len(greedy))
        if requests:
            await calls.watch(self._draw(requests, calls))
        return [
            GeneratedGroup(
                each.ticket,
                each.prompt,
                tuple(Trajectory.of_sample(each.prompt.token_ids, one.now()) for one in group.samples),
                *(Trajectory.of_sample(each.prompt.token_ids, one.now()) for one in greedy[place : place + 1]),
            )
            for place, (each, group) in enumerate(zip(tickets, groups, strict=True))
        ]

    def close(self) -> None:
        """Nothing: the engine is its rank's."""

    def _begin(self, each: PromptedTicket) -> GroupInWork:
        params = self._config.params_of(each)
        carried = each.carried or (NOT_BEGUN,) * params.num_samples
        digest = sampling_digest(each.prompt.token_ids, params)
        group = GroupInWork(each.ticket, digest, [SampleInWork(sample) for sample in carried])
        self.in_work[each.ticket.id] = group
        return group

    def _rest(self, each: PromptedTicket, group: GroupInWork) -> Iterator[_Request]:
        """What is to be drawn of a group: in one request where it has nothing yet, else each sample by itself."""
        params, ids = self._config.params_of(each), each.prompt.token_ids
        if not each.carried:
            yield _Request(ids, params, [sample.more for sample in group.samples])
            return
        for index, sample in enumerate(group.samples):
            begun, seed = sample.carried, params.seed + index
            if begun.goes_on:
                one = replace(params, num_samples=1, seed=seed)
                if begun.output_ids:
                    left = params.max_new_tokens - len(begun.output_ids)
                    one = replace(one, max_new_tokens=left, seed=continued_seed(seed, len(begun.output_ids)))
                yield _Request([*ids, *begun.output_ids], one, [sample.more])

    async def _draw(self, requests: Sequence[_Request], calls: EngineCalls) -> None:
        """Settles all samples of the requests."""
        drawn = [so_far for request in requests for so_far in request.so_far]
        prompts, params = [request.prompt for request in requests], [request.params for request in requests]
        async with aclosing(calls.events(self._engine, prompts, params, Shown.TOKENS)) as events:
            async for event in events:
                for number, sample in event.samples.items():
                    if isinstance(event, Grown):
                        drawn[number].add(sample)
                    else:
                        drawn[number].settle(sample)
