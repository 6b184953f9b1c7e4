"""Several rewards with weights, added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.data import DataSpec
from rljob_api.spec.rollout import RewardSpec
from rljob_workers.data.prompts import Prompt, PromptSource
from rljob_workers.rewards import Answer, RewardError, RewardFailed, RewardRefused, Score, build_reward
from rljob_workers.rewards.base import Outcome, Reward
from rljob_workers.rewards.scoring import FailedShare, FailurePolicy, Scoring, ScoringCounts
from rljob_workers.rewards.weighted_sum import Summand, WeightedSum


class Fixed(Reward):
    """Gives what it was made with, in order, in every call."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes = outcomes
        self.is_closed = False

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[Outcome]]:
        outcomes = iter(self._outcomes)
        return [[next(outcomes) for _ in group] for group in groups]

    def close(self) -> None:
        self.is_closed = True


class Refusing(Reward):
    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[Outcome]]:
        raise RewardRefused("rollout.reward.sum[1].custom.function: no")


def answers(count: int) -> list[list[Answer]]:
    return [[Answer("p", "r", "l", 0, index) for index in range(count)]]


VALUES = st.floats(-100, 100) | st.floats(-100, 100).map(lambda value: Score(value, {"seen": value}))
FAILURES: st.SearchStrategy[RewardError] = st.sampled_from([RewardFailed("first"), RewardFailed("second")])
WEIGHTS = st.floats(-10, 10)


@st.composite
def scored(draw: st.DrawFn) -> tuple[list[float], list[list[Outcome]]]:
    """Weights, and what each reward gives for as many answers."""
    weights = draw(st.lists(WEIGHTS, min_size=1, max_size=4))
    count = draw(st.integers(1, 5))
    outcomes = st.lists(VALUES | FAILURES, min_size=count, max_size=count)
    return weights, [draw(outcomes) for _ in weights]


def plain(outcome: float | Score) -> float:
    return outcome.reward if isinstance(outcome, Score) else outcome


@given(scored())
def test_an_answer_has_the_weighted_sum_or_the_first_failure(case: tuple[list[float], list[list[Outcome]]]) -> None:
    weights, outcomes = case
    parts = [Summand(f"r{place}", weight, Fixed(outcomes[place])) for place, weight in enumerate(weights)]
    reward = WeightedSum(parts)
    ((*got,),) = reward.score_groups(answers(len(outcomes[0])))
    reward.close()
    for found, of_answer in zip(got, zip(*outcomes, strict=True), strict=True):
        failed = [one for one in of_answer if isinstance(one, RewardError)]
        if failed:
            assert found is failed[0]
            continue
        values = [plain(one) for one in of_answer if not isinstance(one, RewardError)]
        assert isinstance(found, Score)
        assert found.reward == pytest.approx(sum(w * v for w, v in zip(weights, values, strict=True)))
        assert [found.metrics[f"r{place}"] for place in range(len(weights))] == values
        assert {name for name in found.metrics if name.endswith("/seen")} == {
            f"r{place}/seen" for place, one in enumerate(of_answer) if isinstance(one, Score)
        }


def test_one_that_cannot_work_ends_the_call_and_all_are_closed() -> None:
    first = Fixed([1.0])
    reward = WeightedSum([Summand("a", 1.0, first), Summand("b", 1.0, Refusing())])
    with pytest.raises(RewardRefused, match="no"):
        reward.score_groups(answers(1))
    reward.close()
    assert first.is_closed


def test_a_sum_that_no_row_can_carry_fails_its_answer() -> None:
    reward = WeightedSum([Summand("a", 1e9, Fixed([3e38, 1.0]))])
    ((failed, scored),) = reward.score_groups(answers(2))
    reward.close()
    assert isinstance(failed, RewardFailed)
    assert str(failed).startswith("rollout.reward.sum: the sum for answer 0 to the prompt 'p' is")
    assert scored == Score(1e9, {"a": 1.0})


def test_settled_scores_have_the_names_of_the_report() -> None:
    parts = [Summand("right", 1.0, Fixed([1.0, 0.0])), Summand("short", 0.5, Fixed([Score(1.0, {"n": 3.0}), 1.0]))]
    reward = WeightedSum(parts)
    scoring = Scoring(reward, FailurePolicy(0, 0.0, None), FailedShare(10, 1.0), ScoringCounts({}))
    (settled,) = scoring.score_groups(answers(2))
    reward.close()
    assert [one.reward for one in settled] == [1.5, 0.5]
    assert [dict(one.metrics) for one in settled] == [
        {"reward/right": 1.0, "reward/short": 1.0, "reward/short/n": 3.0},
        {"reward/right": 0.0, "reward/short": 1.0},
    ]


class NoSource(PromptSource):
    def __len__(self) -> int:
        return 1

    def at(self, index: int) -> Prompt:
        raise AssertionError(index)


@pytest.fixture
def built() -> Iterator[Reward]:
    parts = [
        {"name": "exact", "weight": 2, "exactMatch": {}},
        {"name": "near", "characterMatch": {}},
    ]
    spec = RewardSpec.model_validate({"sum": parts})
    reward = build_reward(spec, DataSpec(prompts="p.jsonl"), NoSource())
    yield reward
    reward.close()


def test_the_spec_names_built_in_rewards(built: Reward) -> None:
    group = [Answer("p", response, "ab", 0, index) for index, response in enumerate(("ab", "ax"))]
    assert built.score_groups([group]) == [
        [Score(3.0, {"exact": 1.0, "near": 1.0}), Score(0.5, {"exact": 0.0, "near": 0.5})]
    ]


def test_the_error_of_a_function_names_its_place_and_its_reward() -> None:
    parts = [{"name": "exact", "exactMatch": {}}, {"name": "odd", "custom": {"function": "statistics:mean"}}]
    reward = build_reward(RewardSpec.model_validate({"sum": parts}), DataSpec(prompts="p.jsonl"), NoSource())
    ((outcome,),) = reward.score_groups([[Answer("p", "r", "l", 0, 0)]])
    reward.close()
    assert str(outcome).startswith("rollout.reward.sum[1].custom.function: statistics:mean (odd) raised TypeError on")
