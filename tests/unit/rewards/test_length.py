"""What lengths do to rewards: tables by hand, and that answers without a score stay so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.rewards import Answer, RewardFailed, Score
from rljob_workers.rewards.base import Outcome, Reward
from rljob_workers.rewards.length import LengthShaped, Overlong, shorter_is_better


class Fixed(Reward):
    """Gives what it was made with."""

    def __init__(self, outcomes: Sequence[Sequence[Outcome]]) -> None:
        self._outcomes = outcomes

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> Sequence[Sequence[Outcome]]:
        return self._outcomes


def answers(*lengths: int) -> list[Answer]:
    return [Answer("p", "r", None, 0, index, token_ids=range(length)) for index, length in enumerate(lengths)]


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(0, 0.0), (60, 0.0), (80, 0.0), (85, -0.125), (90, -0.25), (100, -0.5)],
)
def test_an_answer_near_the_longest_is_punished_by_how_near_it_is(num_tokens: int, expected: float) -> None:
    assert Overlong(longest=100, buffer=20, penalty=0.5).of(num_tokens) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("lengths", "rewards", "expected"),
    [
        pytest.param([10, 20, 30], [1.0, 1.0, 1.0], [0.5, 0.0, -0.5], id="right ones by their length"),
        pytest.param([10, 20, 30], [0.0, 0.0, 0.0], [0.0, 0.0, -0.5], id="wrong ones earn nothing by being short"),
        pytest.param([10, 10], [1.0, 0.0], [0.0, 0.0], id="all are as long"),
        pytest.param([7], [1.0], [0.0], id="there is one"),
        pytest.param([], [], [], id="none could be scored"),
    ],
)
def test_shorter_answers_are_better_ones(lengths: list[int], rewards: list[float], expected: list[float]) -> None:
    assert shorter_is_better(lengths, rewards) == pytest.approx(expected)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=9), st.floats(0.1, 10), st.integers(1, 500))
def test_no_answer_gains_by_being_longer(lengths: list[int], penalty: float, buffer: int) -> None:
    overlong = Overlong(1000, buffer, penalty)
    shaped = LengthShaped(Fixed([[1.0] * len(lengths)]), overlong, 1.0).score_groups([answers(*lengths)])[0]
    by_length = sorted(zip(lengths, (score.reward for score in shaped if isinstance(score, Score)), strict=True))
    assert [reward for _, reward in by_length] == sorted((reward for _, reward in by_length), reverse=True)


def test_each_part_is_a_metric_and_what_has_no_score_gets_none() -> None:
    failed = RewardFailed("no")
    inner = Fixed([[1.0, failed, Score(0.0, {"confidence": 0.5})], [2.0]])
    shaped = LengthShaped(inner, Overlong(100, 20, 1.0), 2.0)
    first, second = shaped.score_groups([answers(50, 1, 90), answers(100)])
    assert first[0] == Score(1.0 + 1.0, {"overlong": 0.0, "shorter": 1.0}), "the shortest of those with a score"
    assert first[1] is failed
    assert first[2] == Score(0.0 - 0.5 - 1.0, {"confidence": 0.5, "overlong": -0.5, "shorter": -1.0})
    assert second == [Score(2.0 - 1.0, {"overlong": -1.0, "shorter": 0.0})]


def test_without_either_there_is_no_metric() -> None:
    (only,) = LengthShaped(Fixed([[1.0]]), None, 0.0).score_groups([answers(5)])
    assert only == [Score(1.0, {})]
