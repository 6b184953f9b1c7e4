"""Answers without a score: not valid, or of a default score; too many end the job with the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.rollout import RewardSpec
from rljob_workers.rewards import Answer, RewardError, RewardFailed, RewardRefused
from rljob_workers.rewards.base import Reward, SettledScore
from rljob_workers.rewards.scoring import FailedShare, FailurePolicy, Scoring, ScoringCounts

AWAY = RewardFailed("mine:reward raised OSError on the prompt 'p': away")
PLENTY = FailedShare(100, 1.0)


class Scripted(Reward):
    """Gives what it was ordered to, call by call, for groups of two."""

    def __init__(self, *calls: list[list[float | None]]) -> None:
        self._calls = list(calls)
        self.asked: list[list[str]] = []

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> Sequence[Sequence[float | RewardError]]:
        self.asked.append([group[0].prompt for group in groups])
        return [[AWAY if score is None else score for score in group] for group in self._calls.pop(0)]


def groups(*names: str) -> list[list[Answer]]:
    return [[Answer(name, "", None, 0, index) for index in range(2)] for name in names]


def policy(*, retries: int = 2, backoff: float = 0.5, default: float | None = None) -> FailurePolicy:
    return FailurePolicy(retries, backoff, default)


@dataclass
class Asked:
    """A scoring with all that it reports by itself."""

    scoring: Scoring
    counters: dict[str, float]


def scoring(reward: Reward, rules: FailurePolicy, share: FailedShare = PLENTY) -> Asked:
    counters: dict[str, float] = {}
    return Asked(Scoring(reward, rules, share, ScoringCounts(counters)), counters)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, FailurePolicy(3, 1.0, None), id="by default a sample without a score is not valid"),
        pytest.param({"then": "Score", "score": -1, "retries": 0}, FailurePolicy(0, 1.0, -1.0), id="or gets one"),
    ],
)
def test_the_policy_of_a_job(spec: dict[str, object], expected: FailurePolicy) -> None:
    assert FailurePolicy.of(RewardSpec.model_validate({"onFailure": spec})) == expected


class Resending(Scripted):
    """As a server's: it tries again by itself, and has replies that it cannot read."""

    num_resent = 0
    num_unread = 0

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> Sequence[Sequence[float | RewardError]]:
        self.num_resent += 2
        self.num_unread += 1
        return super().score_groups(groups)


def test_what_a_reward_tries_again_by_itself_is_counted() -> None:
    asked = scoring(Resending([[1, 2]], [[None, 4]]), policy())
    for calls in (1, 2):
        asked.scoring.score_groups(groups("a"))
        assert (asked.counters["reward_retries"], asked.counters["judge_replies_unread"]) == (2 * calls, calls)


def test_rewards_that_share_counts_add_up_beside_those_of_another_name() -> None:
    """As sets of an evaluation do, beside training's."""
    counters: dict[str, float] = {}
    of_training = Scoring(Scripted([[None, 1]]), policy(), PLENTY, ScoringCounts(counters))
    of_sets = ScoringCounts(counters, "evaluation_")
    sets = [Scoring(Resending([[None, None]]), policy(), PLENTY, of_sets) for _ in range(2)]
    of_training.score_groups(groups("a"))
    for each in sets:
        each.score_groups(groups("a"))
    assert counters == {
        "reward_retries": 0,
        "samples_unscored": 1,
        "judge_replies_unread": 0,
        "evaluation_reward_retries": 4,
        "evaluation_samples_unscored": 4,
        "evaluation_judge_replies_unread": 2,
    }
    assert of_sets.retries == 4


def test_what_stays_without_a_score_is_not_valid_and_states_why() -> None:
    asked = scoring(Scripted([[1, None]]), policy(retries=1))
    assert asked.scoring.score_groups(groups("a")) == [[SettledScore(1), SettledScore(0.0, str(AWAY))]]
    assert asked.counters["samples_unscored"] == 1


class Refusing(Reward):
    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> Sequence[Sequence[float | RewardError]]:
        raise RewardRefused("mine:reward returned 'yes'")


def test_what_no_retry_would_help_is_the_users_to_cure_at_once() -> None:
    asked = scoring(Refusing(), policy())
    with pytest.raises(ValueError, match="mine:reward returned 'yes'") as raised:
        asked.scoring.score_groups(groups("a"))
    assert raised.type is ValueError, "a subclass would count as a crash"


def test_a_default_score_is_a_score() -> None:
    asked = scoring(Scripted([[1, None]]), policy(retries=0, default=-2.0))
    assert asked.scoring.score_groups(groups("a")) == [[SettledScore(1), SettledScore(-2.0)]]
    assert asked.counters["samples_unscored"] == 1


def test_too_many_failures_end_the_job_with_the_last_of_them() -> None:
    share = FailedShare(20, 0.1)
    asked = scoring(Scripted([[1, None]], [[None, 1]], [[1, 1]], [[None, 1]]), policy(retries=0), share)
    for _ in range(3):
        asked.scoring.score_groups(groups("a"))
    with pytest.raises(
        ValueError, match=r"maxFailedShare: 3 of the last 7 samples.*than 0.1 of 20.*The last: .*OSError.*away"
    ) as raised:
        asked.scoring.score_groups(groups("a"))
    assert "retries" not in str(raised.value)  # which rewards make any, only they know


@pytest.mark.parametrize(("samples", "window"), [(32, 256), (1024, 1024)])
def test_one_group_of_a_small_job_is_not_too_many(samples: int, window: int) -> None:
    assert FailedShare.over(samples, 0.1).window == window


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 20), st.floats(0, 1))
def test_the_share_is_that_of_the_last_samples(outcomes: list[bool], window: int, limit: float) -> None:
    share = FailedShare(window, limit)
    for count, failed in enumerate(outcomes, start=1):
        too_many = share.add(failed=failed)
        last = outcomes[:count][-window:]
        assert (share.num_seen, share.num_failed) == (len(last), sum(last))
        assert too_many == (sum(last) > limit * window)
