"""An evaluator puts what is scored part by part, while the answers of the same request are still being scored."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from rljob_api.spec.data import DataSpec
from rljob_api.spec.evaluation import EvaluationDataSpec, EvaluationSetSpec, EvaluationSpec
from rljob_workers.data.prompts import Prompt, PromptSource
from rljob_workers.engines.base import (
    EngineGone,
    Event,
    FinishReason,
    Sample,
    SamplingParams,
    Shown,
    VersionSpan,
)
from rljob_workers.rewards.base import Answer, SettledScore
from rljob_workers.rollout.checkpoint_evaluation import SampleList
from rljob_workers.rollout.evaluating import SCORED_TOGETHER, Evaluator, _scores
from rljob_workers.rollout.evaluation_plan import EvaluationPlan, EvaluationSet, NumberedSample
from tests.unit.rollout.fake_engine import FakeEngine, FakeRankEngine, ends
from tests.weights import weight

PROMPTS = 4 * SCORED_TOGETHER
HELD = weight(2)


class Numbers(PromptSource):
    def __len__(self) -> int:
        return PROMPTS

    def at(self, index: int, /) -> Prompt:
        return Prompt(index, str(index), (index,), label=None)


class OneToken(FakeEngine):
    async def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        for event in ends([Sample([7], [-0.5], FinishReason.STOP, (VersionSpan(HELD, 0, 1),))] * len(prompts)):
            yield event


class TwoTokens(OneToken):
    """Draws a token of each prompt under the version that is held and one under the next, but not of the first."""

    async def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        spans = (VersionSpan(HELD, 0, 1), VersionSpan(weight(3), 1, 2))
        mixed = Sample([7, 7], [-0.5, -0.5], FinishReason.STOP, spans)
        pure = Sample([7, 7], [-0.5, -0.5], FinishReason.STOP, (VersionSpan(HELD, 0, 2),))
        for event in ends([mixed if prompt[0] else pure for prompt in prompts]):
            yield event


class DeadEngine(OneToken):
    async def generate(self, *_: Any, **__: Any) -> AsyncGenerator[Event]:
        raise EngineGone("it has died")
        yield


class HeldUp:
    """A reward that scores the answers to all prompts but the last, which waits until `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[SettledScore]]:
        if any(answer.prompt == str(PROMPTS - 1) for group in groups for answer in group):
            assert self.go.wait(60)
        return [[SettledScore(float(answer.prompt))] for group in groups for answer in group]


class RefusesAll:
    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[SettledScore]]:
        raise ValueError("rollout.reward: cannot work")


def make_evaluator(reward: Any, engine: FakeEngine, scored: list[int]) -> tuple[Evaluator, SampleList]:
    spec = EvaluationSetSpec(name="a", data=EvaluationDataSpec(prompts="a.jsonl"))
    params = SamplingParams(
        temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=1, stop_token_ids=(), num_samples=1, seed=0
    )
    one = EvaluationSet(spec, DataSpec(prompts="a.jsonl"), Numbers(), params, reward)
    plan = EvaluationPlan(EvaluationSpec(sets=[spec], every_steps=1), [one], seed=0, num_rollouts=9)
    proof: Any = SimpleNamespace(is_awaited=False, num_voided=0)
    work = SampleList()
    return (
        Evaluator(
            plan,
            work,
            FakeRankEngine(engine),
            lambda sequences: ["x" for _ in sequences],
            proof,
            max_tokens=8,
            stall_seconds=60,
            wake=lambda: None,
            advance=scored.append,
        ),
        work,
    )


def until(holds: Callable[[], bool], evaluator: Evaluator) -> list[Any]:
    errors: list[Any] = []
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        errors += evaluator.collect()
        time.sleep(0.005)
    return errors


def test_answers_are_put_while_others_of_their_request_are_scored() -> None:
    reward, scored = HeldUp(), list[int]()
    evaluator, work = make_evaluator(reward, OneToken(), scored)
    assert evaluator.claim(HELD, PROMPTS)
    try:
        until(lambda: len(work.results) == PROMPTS - SCORED_TOGETHER, evaluator)
        assert sum(scored) == PROMPTS - SCORED_TOGETHER
    finally:
        reward.go.set()
    until(lambda: len(work.results) == PROMPTS, evaluator)
    assert sum(scored) == PROMPTS
    assert {number: found.reward for number, found in work.results.items()} == {
        number: float(found.prompt) for number, found in work.results.items()
    }


def test_work_that_is_given_up_comes_back_but_for_what_was_put() -> None:
    reward = HeldUp()
    evaluator, work = make_evaluator(reward, OneToken(), [])
    assert evaluator.claim(HELD, PROMPTS)
    try:
        until(lambda: len(work.results) == PROMPTS - SCORED_TOGETHER, evaluator)
        evaluator.hand_back()
        again = work.claim(HELD, "", PROMPTS, PROMPTS, ())
    finally:
        reward.go.set()
    assert isinstance(again, list)
    assert sorted([*again, *work.results]) == list(range(PROMPTS))


def test_a_sample_with_a_token_of_another_version_is_drawn_again() -> None:
    reward = HeldUp()
    reward.go.set()
    evaluator, work = make_evaluator(reward, TwoTokens(), [])
    assert evaluator.claim(HELD, PROMPTS)
    until(lambda: len(work.results) + len(work._again) == PROMPTS, evaluator)
    assert list(work.results) == [0]
    assert sorted(work._again) == list(range(1, PROMPTS))


def test_a_dead_engine_has_all_its_samples_back() -> None:
    evaluator, work = make_evaluator(HeldUp(), DeadEngine(), [])
    assert evaluator.claim(HELD, PROMPTS)
    errors: list[Any] = []
    deadline = time.monotonic() + 60
    while not errors and time.monotonic() < deadline:
        errors += evaluator.collect()
    assert [type(error) for error in errors] == [EngineGone]
    assert work.claim(HELD, "", PROMPTS, PROMPTS, ()) == list(range(PROMPTS))


class DiesBetween(OneToken):
    """Takes a prompt a request, and dies: half of them end at once, the others once the first are collected."""

    prompts_per_request: ClassVar[int | None] = 1

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self._begun = 0

    async def generate(self, *_: Any, **__: Any) -> AsyncGenerator[Event]:
        self._begun += 1
        if self._begun > PROMPTS // 2:
            await asyncio.to_thread(self.go.wait, 60)
        raise EngineGone("it has died")
        yield


def test_a_death_whose_requests_end_one_after_the_other_is_handed_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = DiesBetween()
    evaluator, work = make_evaluator(HeldUp(), engine, [])
    killed: list[list[int]] = []

    def hand_back(samples: Sequence[int], *, killed: bool = False, deaths: list[list[int]] = killed) -> None:
        if killed:
            deaths.append(list(samples))

    monkeypatch.setattr(work, "hand_back", hand_back)
    assert evaluator.claim(HELD, PROMPTS)
    until(lambda: evaluator.samples_in_flight == PROMPTS - PROMPTS // 2, evaluator)
    assert killed == []
    assert not evaluator.claim(HELD, PROMPTS)
    engine.go.set()
    until(lambda: killed != [], evaluator)
    assert killed == [list(range(PROMPTS))]
    assert evaluator.samples_in_flight == 0


def test_a_reward_that_cannot_work_ends_the_evaluation() -> None:
    evaluator, _ = make_evaluator(RefusesAll(), OneToken(), [])
    assert evaluator.claim(HELD, PROMPTS)
    with pytest.raises(ValueError, match="cannot work"):
        until(lambda: False, evaluator)


class Scorer:
    """Gives each answer the length of its response."""

    def __init__(self) -> None:
        self.calls: list[list[list[str]]] = []

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[SettledScore]]:
        self.calls.append([[answer.response for answer in group] for group in groups])
        return [[SettledScore(float(len(answer.response))) for answer in group] for group in groups]


def test_the_answers_of_a_set_are_scored_by_one_call() -> None:
    scorers = {"a": Scorer(), "b": Scorer()}
    sets: dict[str, Any] = {
        name: SimpleNamespace(spec=SimpleNamespace(name=name), scorer=scorer) for name, scorer in scorers.items()
    }
    samples = [NumberedSample(sets[name], place, 0) for place, name in enumerate("abba")]
    answers = [Answer("p", "x" * place, None, place, 0) for place in range(4)]
    assert [score.reward for score in _scores(samples, answers)] == [0.0, 1.0, 2.0, 3.0]
    assert scorers["a"].calls == [[[""], ["xxx"]]]
    assert scorers["b"].calls == [[["x"], ["xx"]]]
