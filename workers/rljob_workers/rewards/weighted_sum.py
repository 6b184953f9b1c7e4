"""Several rewards with weights, added up. Each is asked on its own, side by side, and its value is a metric."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_workers.rewards.base import Answer, Outcome, Reward, RewardError, RewardFailed, Score
from rljob_workers.rewards.metrics import MAX_OF_SUM, MetricNames, is_reward, of_component

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIELD = "rollout.reward.sum"


CALLERS = 128
"""Callers that score at the same time without waiting for each other's rewards."""


@dataclass(frozen=True, slots=True)
class Summand:
    """One of the rewards."""

    name: str
    weight: float
    reward: Reward


class WeightedSum(Reward):
    """The sum of weight x reward; an answer that one of them cannot score has the error of the first that cannot."""

    def __init__(self, summands: Sequence[Summand]) -> None:
        """At least one, with names of their own."""
        self._summands = list(summands)
        self._names = MetricNames(_FIELD, MAX_OF_SUM)
        self._threads = ThreadPoolExecutor(CALLERS * len(summands), thread_name_prefix="reward-sum")

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[Outcome]]:
        """Scores all groups by all rewards; one that another try would not help ends all of this call."""
        asked = [self._threads.submit(each.reward.score_groups, groups) for each in self._summands]
        scored = [each.result() for each in asked]
        return [
            [self._added(answer, outcomes) for answer, *outcomes in zip(*columns, strict=True)]
            for columns in zip(groups, *scored, strict=True)
        ]

    @property
    def num_resent(self) -> int:
        """The sum over its rewards."""
        return sum(each.reward.num_resent for each in self._summands)

    @property
    def num_unread(self) -> int:
        """The sum over its rewards."""
        return sum(each.reward.num_unread for each in self._summands)

    def close(self) -> None:
        """Closes all of them."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for each in self._summands:
            each.reward.close()

    def _added(self, answer: Answer, outcomes: Sequence[Outcome]) -> Outcome:
        total, metrics = 0.0, dict[str, float]()
        for summand, outcome in zip(self._summands, outcomes, strict=True):
            if isinstance(outcome, RewardError):
                return outcome
            total += summand.weight * (outcome.reward if isinstance(outcome, Score) else outcome)
            metrics |= of_component(summand.name, outcome)
        if not is_reward(total):
            return RewardFailed(
                f"{_FIELD}: the sum for answer {answer.index} to the prompt {answer.prompt[:80]!r} is {total}, which"
                " is no finite float32. Give smaller weights or rewards."
            )
        self._names.add(metrics)
        return Score(total, metrics)
