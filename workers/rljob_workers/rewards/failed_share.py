"""How many samples stay without a score: a window over the last ones. Pure."""

from __future__ import annotations

from collections import deque

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
        """Of the samples in the window."""
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
