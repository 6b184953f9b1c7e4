"""Tickets become requests that only the ticket decides, and answers become groups of samples."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import pytest

from rljob_api.names import RolloutId
from rljob_api.wire.identity import WeightId
from rljob_workers.data.prompts import Prompt
from rljob_workers.engines.base import (
    Drawn,
    Ended,
    EngineEmptied,
    EngineGone,
    Event,
    FinishReason,
    Sample,
    SamplingParams,
    Shown,
    VersionSpan,
)
from rljob_workers.engines.one_by_one import merged, singles
from rljob_workers.rollout.admission import PromptedTicket
from rljob_workers.rollout.continuing import ContinuingStage
from rljob_workers.rollout.engine_access import EngineProgress
from rljob_workers.rollout.engine_calls import EngineCalls
from rljob_workers.rollout.group_rows import GeneratedGroup
from rljob_workers.rollout.groups import GenerateStage
from rljob_workers.rollout.sampling import GenerateConfig, sampling_seed
from rljob_workers.rollout.trajectory import Trajectory
from rljob_workers.transfer_queue.types import Ticket
from tests.unit.rollout.fake_engine import FakeEngine, ends
from tests.weights import weight

CONFIG = GenerateConfig(
    job_seed=7,
    samples_per_prompt=2,
    temperature=0.5,
    top_p=0.9,
    top_k=4,
    max_new_tokens=6,
    max_tokens=10,
    stop_token_ids=(1,),
)
TICKET = Ticket(id=11, rollout_id=RolloutId(3), group=2, attempt=0, prompt_index=4, alone=False)


def prompted(ticket: Ticket) -> PromptedTicket:
    """Prompt i has i tokens, all of them i."""
    index = ticket.prompt_index
    return PromptedTicket(ticket, Prompt(index, f"p{index}", (index,) * index, label=f"l{index}"))


class SwappedOnceEngine(FakeEngine):
    """Answers with as many tokens as the number of the sample; the weights changed after the first token."""

    def __init__(self) -> None:
        self.params: list[SamplingParams] = []

    async def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        self.params += params
        samples = [
            self._sample(prompt[0], number)
            for prompt, param in zip(prompts, params, strict=True)
            for number in self._numbers(param)
        ]
        for event in ends(samples):
            yield event

    async def held(self) -> WeightId | None:
        return weight(3)

    async def max_tokens(self) -> int:
        return CONFIG.max_tokens

    async def capacity(self) -> int:
        return 1

    def _numbers(self, params: SamplingParams) -> range:
        return range(1, 1 + params.num_samples)

    def _sample(self, token: int, length: int) -> Sample:
        spans = (VersionSpan(weight(2), 0, 1), VersionSpan(weight(3), 1, length))
        reason = FinishReason.STOP
        return Sample([10 * token] * length, [-0.5 * length] * length, reason, spans[: 1 if length == 1 else 2])


class SampleBySampleEngine(SwappedOnceEngine):
    """Has a request of its own for each sample; the last of a group is answered first."""

    prompts_per_request = 1
    first_seed = sampling_seed(CONFIG.job_seed, TICKET)

    async def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        async with aclosing(merged(self._alone(*each, shown) for each in singles(prompts, params))) as events:
            async for event in events:
                yield event

    async def _alone(self, prompt: Sequence[int], one: SamplingParams, shown: Shown) -> AsyncGenerator[Event]:
        for _ in range(CONFIG.samples_per_prompt - (one.seed - self.first_seed)):
            await asyncio.sleep(0)
        async for event in super().generate([prompt], [one], shown):
            yield event

    def _numbers(self, params: SamplingParams) -> range:
        assert params.num_samples == 1
        number = 1 + params.seed - self.first_seed
        return range(number, number + 1)


class Counts:
    """What a stage reported, in order."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.moved: list[int] = []


def counted_calls(tickets: Sequence[Ticket], counts: Counts) -> EngineCalls:
    """Calls of an engine that is never stalled."""
    progress = EngineProgress(lambda: 0.0, 1 << 20)
    calls = EngineCalls(progress, tickets, stall_seconds=60.0, moved=counts.moved.append)
    calls.made = counts.tokens.append
    return calls


def generated(
    tickets: Sequence[Ticket], engine: SwappedOnceEngine | None = None, counts: Counts | None = None
) -> list[GeneratedGroup]:
    stage = GenerateStage(CONFIG, engine or SwappedOnceEngine())
    counts = counts or Counts()
    return asyncio.run(stage.run([prompted(ticket) for ticket in tickets], counted_calls(tickets, counts)))


def responses_of(group: GeneratedGroup) -> list[Sequence[int]]:
    return [sample.response_ids for sample in group.samples if isinstance(sample, Trajectory)]


def test_the_seed_of_a_group_never_changes() -> None:
    """Pinned: a resumed job draws the same samples as the one that was never interrupted."""
    assert sampling_seed(7, TICKET) == 14701618348027


@pytest.mark.parametrize(
    "reissued",
    [replace(TICKET, id=99), replace(TICKET, prompt_index=99), replace(TICKET, alone=True)],
    ids=["id", "prompt", "alone"],
)
def test_what_a_reissue_changes_is_not_in_the_seed(reissued: Ticket) -> None:
    assert sampling_seed(7, reissued) == sampling_seed(7, TICKET)


def test_other_groups_rollouts_attempts_and_jobs_draw_other_samples() -> None:
    seeds = [
        sampling_seed(job, replace(TICKET, rollout_id=RolloutId(rollout), group=group, attempt=attempt))
        for job in range(3)
        for rollout in range(12)
        for group in range(12)
        for attempt in range(3)
    ]
    ordered = sorted(seeds)
    assert all(later - earlier > 256 for earlier, later in pairwise(ordered)), (
        "the i-th sample has seed + i: seeds must not be neighbours"
    )
    assert all(0 <= seed < 2**44 for seed in seeds)


def test_a_request_is_what_the_spec_states_within_what_the_model_can_hold() -> None:
    engine = SwappedOnceEngine()
    generated([replace(TICKET, prompt_index=4), replace(TICKET, prompt_index=8)], engine)
    short, long = engine.params
    assert short == SamplingParams(0.5, 0.9, 4, 6, (1,), num_samples=2, seed=sampling_seed(7, TICKET))
    assert long.max_new_tokens == 2


def test_samples_are_asked_for_together_where_the_engine_takes_them_so() -> None:
    counts = Counts()
    first, second = generated([TICKET, replace(TICKET, id=12, group=3, prompt_index=2)], counts=counts)
    assert (first.ticket, first.prompt.index, second.ticket.id, second.prompt.index) == (TICKET, 4, 12, 2)
    assert responses_of(second) == [[20], [20, 20]]
    assert (counts.tokens, counts.moved) == ([6], [-4])


class LastGoesOnEngine(SwappedOnceEngine):
    """All samples of a request but its last end at once; the last when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()

    async def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        samples = [
            sample
            async for event in super().generate(prompts, params)
            if isinstance(event, Ended)
            for sample in event.samples.values()
        ]
        for number, sample in enumerate(samples):
            if number == len(samples) - 1:
                await self.may_end.wait()
            yield Ended({number: sample})


@pytest.mark.parametrize("kind", [GenerateStage, ContinuingStage])
def test_samples_leave_their_places_while_another_of_their_request_goes_on(
    kind: type[GenerateStage] | type[ContinuingStage],
) -> None:
    tickets = [TICKET, replace(TICKET, id=12, group=3, prompt_index=2)]
    counts, engine = Counts(), LastGoesOnEngine()

    async def run() -> list[int]:
        stage = kind(CONFIG, engine)
        calls = counted_calls(tickets, counts)
        running = asyncio.ensure_future(stage.run([prompted(ticket) for ticket in tickets], calls))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not running.done()
        before = sum(counts.moved)
        engine.may_end.set()
        await running
        return [before, sum(counts.moved)]

    assert asyncio.run(run()) == [-3, -4]


def test_each_sample_is_a_request_and_makes_room_alone_where_the_engine_takes_one() -> None:
    counts, engine = Counts(), SampleBySampleEngine()
    (group,) = generated([TICKET], engine, counts)
    assert responses_of(group) == [[40], [40, 40]], "in order of their seeds"
    assert (counts.tokens, counts.moved) == ([2, 1], [-1, -1]), "the second was done first"
    assert {param.seed for param in engine.params} == {engine.first_seed, engine.first_seed + 1}


class GreedyEngine(SwappedOnceEngine):
    """Takes one sample a request; a greedy answer is the token 99."""

    prompts_per_request: ClassVar[int | None] = 1

    def _numbers(self, params: SamplingParams) -> range:
        return range(params.num_samples) if params.temperature else range(-1, 0)

    def _sample(self, token: int, length: int) -> Sample:
        made = super()._sample(token, 1)
        return made if length >= 0 else replace(made, output_ids=[99])


class GreedyEngineOfManyPrompts(GreedyEngine):
    """All at once."""

    prompts_per_request = None


@pytest.mark.parametrize("kind", [GreedyEngine, GreedyEngineOfManyPrompts])
def test_a_greedy_answer_is_drawn_beside_the_samples_of_each_ticket(kind: type[GreedyEngine]) -> None:
    counts, engine = Counts(), kind()
    stage = GenerateStage(replace(CONFIG, draws_greedy=True, stop=("x",), min_p=0.25), engine)
    tickets = [TICKET, replace(TICKET, id=12, group=3, prompt_index=8)]
    first, second = asyncio.run(stage.run([prompted(each) for each in tickets], counted_calls(tickets, counts)))
    assert (responses_of(first), responses_of(second)) == ([[40]] * 2, [[80]] * 2)
    assert first.greedy is not None
    assert second.greedy is not None
    assert (first.greedy.token_ids, second.greedy.token_ids) == ([4] * 4 + [99], [8] * 8 + [99])
    assert (sum(counts.tokens), sum(counts.moved)) == (6, -6), "they hold places at the engine like samples"
    greedy = [one for one in engine.params if one.temperature == 0.0]
    assert [(one.max_new_tokens, one.num_samples, one.top_p, one.top_k) for one in greedy] == [
        (6, 1, 1, 0),
        (2, 1, 1, 0),
    ]
    assert all((one.stop_token_ids, one.stop) == ((1,), ("x",)) for one in engine.params)
    assert {(one.temperature, one.min_p) for one in engine.params} == {(CONFIG.temperature, 0.25), (0.0, 0.0)}


class GreedilyGone(GreedyEngine):
    """Dies with the greedy answer."""

    def _numbers(self, params: SamplingParams) -> range:
        if not params.temperature:
            raise EngineGone("the engine's sentence")
        return super()._numbers(params)


class GreedilyEmptied(GreedyEngine):
    """Aborts it."""

    def _sample(self, token: int, length: int) -> Sample:
        made = super()._sample(token, length)
        return made if length >= 0 else replace(made, finish_reason=FinishReason.ABORT)


@pytest.mark.parametrize(("engine", "error"), [(GreedilyGone(), EngineGone), (GreedilyEmptied(), EngineEmptied)])
def test_nothing_counts_of_tickets_whose_greedy_answer_fails(engine: GreedyEngine, error: type[Exception]) -> None:
    stage = GenerateStage(replace(CONFIG, draws_greedy=True), engine)
    with pytest.raises(error):
        asyncio.run(stage.run([prompted(TICKET)], counted_calls([TICKET], Counts())))


class FailingEngine(SampleBySampleEngine):
    """Dies with the first sample; the others would never end."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled = 0

    async def _alone(self, prompt: Sequence[int], one: SamplingParams, shown: Shown) -> AsyncGenerator[Event]:
        if one.seed == self.first_seed:
            await asyncio.sleep(0)
            raise EngineGone("the engine's sentence")
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1
        yield Drawn(1)


def test_the_first_sample_that_fails_ends_its_group() -> None:
    engine = FailingEngine()
    with pytest.raises(EngineGone, match="the engine's sentence"):
        generated([TICKET], engine)
    assert engine.cancelled == CONFIG.samples_per_prompt - 1


class EmptiedEngine(SampleBySampleEngine):
    """Everything is aborted while the first sample is made, before it has a token."""

    def _sample(self, token: int, length: int) -> Sample:
        return super()._sample(token, length) if length > 1 else Sample([], [], FinishReason.ABORT, ())


def test_a_group_with_a_sample_that_was_aborted_is_no_group() -> None:
    with pytest.raises(EngineEmptied, match="they are no answers"):
        generated([TICKET], EmptiedEngine())
