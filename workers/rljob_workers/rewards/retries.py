"""Retries of a reward that may fail: what it has failed on, and nothing else, is asked again after ever longer pauses.

Each such reward of a job has its own, also within a sum, whose other rewards are then not asked again. The first time
that one has to be asked again is reported, once. Threads may share one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_api.wire.ranks import NoticeKind
from rljob_workers.dcs.membership.news import News
from rljob_workers.rewards.base import Answer, Outcome, RewardAround, RewardError
from rljob_workers.rewards.scoring import FailurePolicy, ScoringCounts

if TYPE_CHECKING:
    from rljob_workers.rewards.custom import CustomReward

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retries:
    """How the rewards of a job are asked again, and where that is counted."""

    policy: FailurePolicy
    counts: ScoringCounts
    sleep: Callable[[float], None] = time.sleep


class Retried(RewardAround):
    """A reward that is asked again for what it has failed on.

    That is an answer where it scores each by itself, else all answers to its prompt: it may compare them.
    """

    def __init__(self, reward: CustomReward, retries: Retries) -> None:
        super().__init__(reward)
        self._reward = reward
        self._retries = retries
        self._lock = threading.Lock()
        self._is_reported = False

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[Outcome]]:
        """Blocks for retries and pauses, too. An answer that keeps failing has the error of its last try."""
        policy, num_asked = self._retries.policy, 0
        outcomes = [list(group) for group in self._reward.score_groups(groups)]
        failures = [outcome for group in outcomes for outcome in group if isinstance(outcome, RewardError)]
        for retry in range(policy.retries):
            places = [place for place, group in enumerate(outcomes) if _num_failed(group)]
            if not places:
                break
            self._retries.sleep(policy.backoff_seconds * 2**retry)
            num_asked += self._ask_again(groups, outcomes, places)
        if num_asked:
            self._report(failures, num_asked, outcomes)
        return outcomes

    def _ask_again(
        self, groups: Sequence[Sequence[Answer]], outcomes: Sequence[list[Outcome]], places: Sequence[int]
    ) -> int:
        """Puts into `outcomes` of these groups what comes now; gives the number of calls."""
        asked = [self._to_ask(outcomes[place]) for place in places]
        num_calls = sum(map(len, asked)) if self._reward.per_sample else len(asked)
        self._retries.counts.add_retries(num_calls)
        again = self._reward.score_groups(
            [[groups[place][index] for index in indices] for place, indices in zip(places, asked, strict=True)]
        )
        for place, indices, found in zip(places, asked, again, strict=True):
            for index, outcome in zip(indices, found, strict=True):
                # A score that was there stays where there is none now.
                if not isinstance(outcome, RewardError) or isinstance(outcomes[place][index], RewardError):
                    outcomes[place][index] = outcome
        return num_calls

    def _to_ask(self, group: Sequence[Outcome]) -> list[int]:
        if not self._reward.per_sample:
            return list(range(len(group)))
        return [index for index, outcome in enumerate(group) if isinstance(outcome, RewardError)]

    def _report(self, failures: Sequence[RewardError], num_asked: int, outcomes: Sequence[Sequence[Outcome]]) -> None:
        """`failures`: of the first try."""
        with self._lock:
            if self._is_reported:
                return
            self._is_reported = True
        left = sum(map(_num_failed, outcomes))
        counts, where = self._retries.counts, self._reward.where
        policy, what = self._retries.policy, "for an answer" if self._reward.per_sample else "for a prompt's answers"
        sentence = (
            f"{where} failed for {len(failures)} of {sum(map(len, outcomes))} answers, and was called"
            f" {num_asked} times more, each {what}, after pauses of {policy.backoff_seconds:g} s and longer;"
            f" {left} stay without a score. Later calls of this kind are counted in {counts.retries_name}. The last"
            f" failure of the first try: {failures[-1]}"
        )
        _LOG.warning(sentence)
        counts.news.put(News(NoticeKind.REWARD_RETRIED, sentence, subject=f"{where} ({counts.retries_name})"))


def _num_failed(group: Sequence[Outcome]) -> int:
    return sum(isinstance(outcome, RewardError) for outcome in group)
