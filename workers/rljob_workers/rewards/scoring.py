"""Scores of finished groups as a job settles them: what failures become, and when they are too many.

For the rollout role; threads may share one. The window of failed samples is a pure policy. Knows no reward's inside.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

from rljob_api.spec.rollout import FailedReward, RewardSpec
from rljob_workers.dcs.membership.counters import REWARD_RETRIES, UNREAD, UNSCORED
from rljob_workers.dcs.membership.news import NewsQueue
from rljob_workers.rewards.base import Answer, Outcome, Reward, RewardError, RewardRefused, Score, SettledScore
from rljob_workers.rewards.metrics import PREFIX
from rljob_workers.user_functions import FailureLog, final

AT_LEAST = 256
"""Samples of a window: in a small one a single group would be too many."""


class FailedShare:
    """Whether too many of the last `window` samples have failed.

    They count against the whole window from the first sample on: a few failures among the first few samples are no
    verdict yet, and a reward that never works is found as soon as its failures alone are too many.
    """

    def __init__(self, window: int, limit: float) -> None:
        """`limit` is a share of the window, 0 to 1."""
        self.window = window
        self.limit = limit
        self._failed: deque[bool] = deque(maxlen=window)
        self._num_failed = 0

    @classmethod
    def over(cls, samples_per_rollout: int, limit: float) -> FailedShare:
        """The window of a job."""
        return cls(max(samples_per_rollout, AT_LEAST), limit)

    @property
    def num_failed(self) -> int:
        """Failed ones of the samples in the window."""
        return self._num_failed

    @property
    def num_seen(self) -> int:
        """Samples in the window, at most `window`."""
        return len(self._failed)

    def add(self, *, failed: bool) -> bool:
        """One more sample; gives whether they are too many now."""
        if len(self._failed) == self.window:
            self._num_failed -= self._failed[0]
        self._failed.append(failed)
        self._num_failed += failed
        return self._num_failed > self.limit * self.window


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Treatment of an answer that could not be scored."""

    retries: int
    backoff_seconds: float
    """Before the first retry; twice as long before each further one."""
    default: float | None
    """The score that it gets in the end. None: none, its sample is not valid."""

    @classmethod
    def of(cls, spec: RewardSpec) -> FailurePolicy:
        """As the job has it."""
        policy = spec.on_failure
        default = policy.score if policy.then is FailedReward.SCORE else None
        return cls(policy.retries, policy.backoff_seconds, default)


class ScoringCounts:
    """Counts of a rank's rewards that it reports: retries, samples and judges' replies without a score.

    Rewards and their threads may share one.
    """

    def __init__(self, counters: MutableMapping[str, float], prefix: str = "", news: NewsQueue | None = None) -> None:
        """`prefix` begins the counters' names. `news` gets each reward that had to be asked again, once."""
        self._counters = counters
        self.retries_name = f"{prefix}{REWARD_RETRIES}"
        """The counter of retries."""
        self._unscored, self._unread = f"{prefix}{UNSCORED}", f"{prefix}{UNREAD}"
        self._lock = threading.Lock()
        counters.update(dict.fromkeys((self.retries_name, self._unscored, self._unread), 0.0))
        self.news = NewsQueue() if news is None else news

    @property
    def retries(self) -> int:
        """So far."""
        return int(self._counters[self.retries_name])

    def add_retries(self, calls: int) -> None:
        """So many calls are made again, or were."""
        with self._lock:
            self._counters[self.retries_name] += calls

    def add_unread(self, replies: int) -> None:
        """So many replies of judges had not exactly one score."""
        with self._lock:
            self._counters[self._unread] += replies

    def add_unscored(self, samples: int) -> int:
        """So many stay without a score; gives how many have so far."""
        with self._lock:
            self._counters[self._unscored] += samples
            return int(self._counters[self._unscored])


class Scoring:
    """A reward and its policy."""

    def __init__(self, reward: Reward, policy: FailurePolicy, share: FailedShare, counts: ScoringCounts) -> None:
        """The parts come from their factories; nothing is called here. The reward makes its retries by itself."""
        self._reward = reward
        self._policy = policy
        self._share = share
        self._lock = threading.Lock()
        self._failures = FailureLog(_LOG, "the reward's function")
        self._counts = counts
        self._num_resent = 0
        self._num_unread = 0
        """The part of the reward's requests and replies that was counted."""

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[SettledScore]]:
        """One score per answer, in order; blocks for as long as it takes.

        Raises ValueError where another try would not help, and where too many have failed.
        """
        return [[self._settled(outcome) for outcome in group] for group in self._ask(groups)]

    def _ask(self, groups: Sequence[Sequence[Answer]]) -> Sequence[Sequence[Outcome]]:
        try:
            return self._reward.score_groups(groups)
        except RewardRefused as error:
            raise final(str(error), error.__cause__) from error
        finally:
            with self._lock:
                resent, unread = self._reward.num_resent, self._reward.num_unread
                self._counts.add_retries(resent - self._num_resent)
                self._counts.add_unread(unread - self._num_unread)
                self._num_resent, self._num_unread = resent, unread

    def _settled(self, outcome: Outcome) -> SettledScore:
        failed = isinstance(outcome, RewardError)
        number = self._counts.add_unscored(int(failed))
        with self._lock:
            too_many = self._share.add(failed=failed)
            sentence = self._sentence() if too_many else ""
        if isinstance(outcome, Score):
            named = {f"{PREFIX}{name}": value for name, value in outcome.metrics.items()}
            return SettledScore(outcome.reward, metrics=named)
        if not isinstance(outcome, RewardError):
            return SettledScore(outcome)
        if too_many:
            raise final(f"{sentence} The last: {outcome}", outcome.__cause__) from outcome
        sentence = f"samples without a score so far: {number}; the last: {outcome}"
        self._failures.add(number, sentence, outcome.__cause__)
        return SettledScore(0.0, str(outcome)) if self._policy.default is None else SettledScore(self._policy.default)

    def _sentence(self) -> str:
        share = self._share
        return (
            f"rollout.reward.maxFailedShare: {share.num_failed} of the last {share.num_seen} samples could not be "
            f"scored, which is more than {share.limit:g} of {share.window}."
            " Mend the reward, or raise maxFailedShare."
        )
