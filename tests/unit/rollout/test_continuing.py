"""Samples go on behind what was carried of them: what is asked of the engine, and what becomes of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from rljob_workers.data.prompts import Prompt
from rljob_workers.engines.base import (
    NOT_BEGUN,
    EngineEmptied,
    EngineGone,
    Event,
    FinishReason,
    Grown,
    Sample,
    SamplingParams,
    Shown,
    VersionSpan,
    continued_seed,
)
from rljob_workers.rollout.admission import PromptedTicket
from rljob_workers.rollout.continuing import ContinuingStage
from rljob_workers.rollout.group_rows import GeneratedGroup
from rljob_workers.rollout.sampling import sampling_seed
from rljob_workers.rollout.trajectory import Trajectory
from tests.unit.rollout.fake_engine import FakeEngine, ends
from tests.unit.rollout.test_generate import CONFIG, TICKET, Counts, counted_calls
from tests.weights import weight

SEED = sampling_seed(CONFIG.job_seed, TICKET)
PROMPT = Prompt(4, "p4", (4, 4), label="l4")
ENDED = Sample([7, 1], [-0.1, -0.2], FinishReason.STOP, (VersionSpan(weight(2), 0, 2),))
BEGUN = Sample([8, 9], [-0.3, -0.4], FinishReason.ABORT, (VersionSpan(weight(1), 0, 1), VersionSpan(weight(2), 1, 2)))


class ShowingEngine(FakeEngine):
    """Draws token 5 twice for each sample under version 3, and shows the first before it answers or dies."""

    dies = False
    finish = FinishReason.LENGTH

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], SamplingParams]] = []

    async def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        self.asked += [(list(prompt), one) for prompt, one in zip(prompts, params, strict=True)]
        assert shown is Shown.TOKENS
        numbers = range(sum(one.num_samples for one in params))
        first = Sample([5], [-0.5], FinishReason.ABORT, (VersionSpan(weight(3), 0, 1),))
        yield Grown(dict.fromkeys(numbers, first))
        if self.dies:
            raise EngineGone("it died")
        for event in ends([Sample([5, 5], [-0.5, -0.6], self.finish, (VersionSpan(weight(3), 0, 2),))] * len(numbers)):
            yield event


def run(
    engine: ShowingEngine,
    carried: tuple[Sample, ...],
    counts: Counts | None = None,
    *,
    draws_greedy: bool = False,
) -> tuple[ContinuingStage, GeneratedGroup]:
    stage = ContinuingStage(replace(CONFIG, draws_greedy=draws_greedy), engine)
    ticket = PromptedTicket(TICKET, PROMPT, carried)
    (group,) = asyncio.run(stage.run([ticket], counted_calls([TICKET], counts or Counts())))
    return stage, group


def responses(group: GeneratedGroup) -> list[tuple[list[int], list[float], FinishReason]]:
    made = [sample for sample in group.samples if isinstance(sample, Trajectory)]
    return [(list(one.response_ids), list(one.log_probs), one.finish) for one in made]


def test_the_beginning_is_sent_behind_the_prompt_and_only_what_is_left_is_asked_for() -> None:
    engine, counts = ShowingEngine(), Counts()
    _, group = run(engine, (ENDED, BEGUN), counts)
    ((ids, params),) = engine.asked
    assert ids == [4, 4, 8, 9]
    assert (params.num_samples, params.max_new_tokens) == (1, CONFIG.max_new_tokens - 2)
    assert params.seed == continued_seed(SEED + 1, 2)
    assert responses(group) == [
        ([7, 1], [-0.1, -0.2], FinishReason.STOP),
        ([8, 9, 5, 5], [-0.3, -0.4, -0.5, -0.6], FinishReason.LENGTH),
    ]
    spans = [VersionSpan(weight(1), 0, 1), VersionSpan(weight(2), 1, 2), VersionSpan(weight(3), 2, 4)]
    assert isinstance(group.samples[1], Trajectory)
    assert list(group.samples[1].version_spans) == spans
    assert counts.moved == [-1, -1]


def test_a_group_without_a_beginning_is_asked_for_as_ever() -> None:
    engine = ShowingEngine()
    _, group = run(engine, ())
    assert [(one.num_samples, one.seed) for _, one in engine.asked] == [(2, SEED)]
    assert {one.max_new_tokens for _, one in engine.asked} == {CONFIG.max_new_tokens}
    assert [ids for ids, _, _ in responses(group)] == [[5, 5], [5, 5]]


def test_a_sample_that_has_nothing_beside_one_that_has_draws_by_its_own_seed() -> None:
    engine = ShowingEngine()
    run(engine, (NOT_BEGUN, BEGUN))
    assert [(ids, one.seed) for ids, one in engine.asked] == [
        ([4, 4], SEED),
        ([4, 4, 8, 9], continued_seed(SEED + 1, 2)),
    ]


def test_a_group_whose_samples_have_all_ended_asks_the_engine_for_nothing() -> None:
    engine, counts = ShowingEngine(), Counts()
    _, group = run(engine, (ENDED, ENDED), counts)
    assert engine.asked == []
    assert [ids for ids, _, _ in responses(group)] == [[7, 1], [7, 1]]
    assert counts.moved == [-2]


def test_a_greedy_answer_is_drawn_again() -> None:
    engine = ShowingEngine()
    _, group = run(engine, (ENDED, BEGUN), draws_greedy=True)
    assert [(ids, one.temperature) for ids, one in engine.asked] == [([4, 4, 8, 9], 0.5), ([4, 4], 0.0)]
    assert group.greedy is not None
    assert list(group.greedy.response_ids) == [5, 5]


def test_when_the_engine_dies_what_it_had_shown_is_there() -> None:
    engine = ShowingEngine()
    engine.dies = True
    stage = ContinuingStage(CONFIG, engine)
    with pytest.raises(EngineGone):
        asyncio.run(stage.run([PromptedTicket(TICKET, PROMPT, (ENDED, BEGUN))], counted_calls([TICKET], Counts())))
    ended, begun = (sample.now() for sample in stage.in_work[TICKET.id].samples)
    assert ended == ENDED
    assert (begun.output_ids, begun.goes_on) == ([8, 9, 5], True)
    assert begun.spans[-1] == VersionSpan(weight(3), 2, 3)


def test_samples_that_were_aborted_go_on_later() -> None:
    engine = ShowingEngine()
    engine.finish = FinishReason.ABORT
    stage = ContinuingStage(CONFIG, engine)
    with pytest.raises(EngineEmptied):
        asyncio.run(stage.run([PromptedTicket(TICKET, PROMPT, (ENDED, BEGUN))], counted_calls([TICKET], Counts())))
    begun = stage.in_work[TICKET.id].samples[1].now()
    assert (begun.output_ids, begun.goes_on) == ([8, 9, 5, 5], True)


def test_what_follows_is_drawn_by_other_numbers_than_the_beginning() -> None:
    seeds = {continued_seed(seed, length) for seed in range(SEED, SEED + 40) for length in range(1, 40)}
    assert len(seeds) == 40 * 39
    assert all(0 <= seed < 2**44 for seed in seeds)
    assert continued_seed(7, 5) == continued_seed(7, 5)
