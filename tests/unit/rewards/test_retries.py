"""A reward that fails is asked again for what it has failed on: not its other answers, nor other rewards of a sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from rljob_workers.dcs.membership.counters import OF_EVALUATIONS
from rljob_workers.rewards import Answer, Reward, RewardError, RewardFailed, RewardMissing, Score
from rljob_workers.rewards.custom import CustomReward
from rljob_workers.rewards.retries import Retried, Retries
from rljob_workers.rewards.runners import LoopRunner, ThreadRunner
from rljob_workers.rewards.scoring import FailurePolicy, ScoringCounts
from rljob_workers.rewards.weighted_sum import Summand, WeightedSum
from tests.unit.rewards.test_servers import Reply, built, group, serving

Place = tuple[str, int]
"""An answer: its prompt and its index."""


@dataclass
class World:
    """Rewards of functions that fail as a test says, and what became of their calls."""

    policy: FailurePolicy = field(default_factory=lambda: FailurePolicy(3, 0.5, None))
    calls: dict[str, Counter[Place]] = field(default_factory=dict)
    slept: list[float] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    prefix: str = ""

    def __post_init__(self) -> None:
        self.counts = ScoringCounts(self.counters, self.prefix)

    def retried(self, reward: CustomReward) -> Retried:
        return Retried(reward, Retries(self.policy, self.counts, self.slept.append))

    def reward(
        self, name: str, fails: Callable[[Place, int], Any], *, per_sample: bool, is_async: bool = False
    ) -> Retried:
        """`fails(answer, number of its call)`: what it raises or gives in the place of 1.0; None: it gives that."""
        calls = self.calls[name] = Counter()

        def score(answers: Sequence[Answer]) -> list[Any]:
            found = []
            for answer in answers:
                place = (answer.prompt, answer.index)
                calls[place] += 1
                instead = fails(place, calls[place])
                if isinstance(instead, Exception):
                    raise instead
                found.append(1.0 if instead is None else instead)
            return found

        async def score_later(answers: Sequence[Answer]) -> list[Any]:
            return score(answers)

        runner = LoopRunner(score_later) if is_async else ThreadRunner(score)
        return self.retried(CustomReward(name, runner, 30.0, per_sample=per_sample))

    def news(self) -> Iterator[str]:
        while not self.counts.news.empty():
            yield self.counts.news.get().sentence


def groups(*prompts: str, count: int = 3) -> list[list[Answer]]:
    return [[Answer(prompt, "", None, 0, index) for index in range(count)] for prompt in prompts]


@pytest.mark.parametrize("is_async", [False, True], ids=["a plain function", "an async function"])
def test_of_a_reward_per_sample_only_answers_that_failed_are_asked_again(is_async: bool) -> None:
    world = World()
    bad: dict[Place, int] = {("a", 1): 1, ("b", 0): 2}
    reward = world.reward(
        "f",
        lambda place, call: OSError("away") if call <= bad.get(place, 0) else None,
        per_sample=True,
        is_async=is_async,
    )
    with closing(reward):
        assert reward.score_groups(groups("a", "b", "c")) == [[1.0] * 3] * 3
    assert world.calls["f"] == {
        (prompt, index): 1 + bad.get((prompt, index), 0) for prompt in "abc" for index in range(3)
    }
    assert world.slept == [0.5, 1.0]
    assert world.counters["reward_retries"] == 3


def test_of_a_reward_of_groups_only_the_groups_that_failed_are_asked_again_as_a_whole() -> None:
    """It may compare the answers, so that it is never shown a part of them."""
    world = World()
    shown: list[list[Place]] = []

    def score(answers: Sequence[Answer]) -> list[float | None]:
        shown.append([(answer.prompt, answer.index) for answer in answers])
        is_first = shown.count(shown[-1]) == 1
        return [0.25 if is_first else 0.75, None if is_first and answers[0].prompt == "b" else 1.0]

    reward = world.retried(CustomReward("f", ThreadRunner(score), 30.0))
    with closing(reward):
        assert reward.score_groups(groups("a", "b", count=2)) == [[0.25, 1.0], [0.75, 1.0]]
    assert sorted(shown) == [[("a", 0), ("a", 1)], [("b", 0), ("b", 1)], [("b", 0), ("b", 1)]]
    assert world.counters["reward_retries"] == 1


def test_an_answer_keeps_the_score_that_it_had_before_a_retry() -> None:
    world = World(FailurePolicy(1, 0.0, None))
    gives = iter([[1.0, None], [None, 2.0]])
    reward = world.retried(CustomReward("f", ThreadRunner(lambda answers: next(gives)), 30.0))
    with closing(reward):
        assert reward.score_groups(groups("a", count=2)) == [[1.0, 2.0]]


def test_a_reward_of_a_sum_that_has_scored_is_not_called_again() -> None:
    """The bill of a judge does not grow by what another reward costs."""
    world = World(FailurePolicy(3, 0.0, None))
    judge = world.reward("judge", lambda place, call: None, per_sample=True)
    flaky = world.reward("flaky", lambda place, call: OSError("away") if place[1] == 2 else None, per_sample=True)
    reward: Reward = WeightedSum([Summand("judge", 1.0, judge), Summand("flaky", 0.5, flaky)])
    with closing(reward):
        ((first, second, third),) = reward.score_groups(groups("a"))
    assert isinstance(first, Score)
    assert (first, first.reward) == (second, 1.5)
    assert isinstance(third, RewardFailed)
    assert set(world.calls["judge"].values()) == {1}
    assert world.calls["flaky"] == {("a", 0): 1, ("a", 1): 1, ("a", 2): 4}


def test_a_reward_that_has_to_be_asked_again_is_reported_once_with_its_retries() -> None:
    world = World()
    reward = world.reward("mine:f", lambda place, call: OSError("away") if place[1] == 0 else None, per_sample=True)
    fine = world.reward("mine:g", lambda place, call: None, per_sample=True)
    with closing(reward), closing(fine):
        for _ in range(3):
            reward.score_groups(groups("a", "b"))
            fine.score_groups(groups("a", "b"))
    (sentence,) = world.news()
    assert sentence.startswith(
        "rollout.reward.custom.function: mine:f failed for 2 of 6 answers, and was called 6 times more, each for an"
        " answer, after pauses of 0.5 s and longer; 2 stay without a score. Later calls of this kind are counted in"
        " reward_retries. The last failure of the first try: rollout.reward.custom.function: mine:f raised OSError on"
        " the prompt 'b'"
    )
    assert world.counters["reward_retries"] == 18


def test_a_report_names_the_counter_of_its_kind_and_is_another_event_than_those_of_others() -> None:
    """A reward that fails for answers of an evaluation may have failed for samples, too."""
    found = []
    for prefix in ("", OF_EVALUATIONS):
        world = World(FailurePolicy(1, 0.0, None), prefix=prefix)
        with closing(world.reward("f", lambda place, call: OSError("away"), per_sample=True)) as reward:
            reward.score_groups(groups("a"))
        again = world.counts.news.get_nowait()
        assert f" are counted in {prefix}reward_retries." in again.sentence
        assert world.counters[f"{prefix}reward_retries"] == 3
        found.append(again.subject)
    assert len(set(found)) == 2


def test_a_job_that_retries_nothing_reports_nothing_of_it() -> None:
    world = World(FailurePolicy(0, 0.0, None))
    reward = world.reward("f", lambda place, call: OSError("away"), per_sample=True)
    with closing(reward):
        ((outcome, *_),) = reward.score_groups(groups("a"))
    assert isinstance(outcome, RewardFailed)
    assert (world.slept, list(world.news())) == ([], [])


def test_an_answer_whose_label_is_no_expression_is_not_asked_for_again() -> None:
    """Rewards that come with the product give the same again."""
    world = World()
    from rljob_api.spec.data import DataSpec
    from rljob_api.spec.rollout import RewardSpec
    from rljob_workers.rewards import build_reward
    from tests.unit.rewards.test_builtin import NoSource

    retries = Retries(world.policy, world.counts, world.slept.append)
    spec = RewardSpec.model_validate({"mathVerify": {}})
    with closing(build_reward(spec, DataSpec(prompts="p.jsonl"), NoSource(), retries)) as reward:
        ((outcome,),) = reward.score_groups([[Answer("p", "1", "no maths", 0, 0)]])
    assert isinstance(outcome, RewardMissing)
    assert world.slept == []


@pytest.mark.parametrize(("kind", "calls"), [("remote", 3), ("judge", 5)])
def test_a_server_is_asked_again_for_what_it_has_not_scored(kind: str, calls: int) -> None:
    """Four answers, two to a prompt. `remote` gets a prompt's answers at once, a judge one."""
    seen: Counter[str] = Counter()

    def answer(path: str, body: Any, number: int) -> Reply:
        if kind == "remote":
            texts = [each["response"] for each in body["answers"]]
            seen.update(texts)
            return 200, {"scores": [None if text == "bad" and seen[text] == 1 else 0.5 for text in texts]}
        text = "bad" if "<bad>" in body["messages"][0]["content"] else "good"
        seen[text] += 1
        content = "who knows" if text == "bad" and seen[text] == 1 else "Score: 5"
        return 200, {"choices": [{"message": {"content": content}}]}

    fields = {} if kind == "remote" else {"model": "m", "rubric": "<{response}>"}
    world = World(FailurePolicy(2, 0.0, None))
    with serving(answer) as server, closing(world.retried(built(kind, url=server.url, **fields))) as reward:
        scores = reward.score_groups([group("good", "good"), group("bad", "good", number=1)])
    assert scores == [[0.5, 0.5], [0.5, 0.5]]
    assert server.calls == calls
    assert world.counters["reward_retries"] == 1
    assert not any(isinstance(score, RewardError) for of_prompt in scores for score in of_prompt)
