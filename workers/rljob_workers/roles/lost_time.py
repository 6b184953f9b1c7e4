"""Lost time: how long a main loop has run, and how much of that it could not work, as counters of its rank.

Used by the loops of actor and rollout. The coordinator sums them up, and whoever scales the rollouts reads the sums.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping

from rljob_workers.dcs.membership.counters import LOOP_SECONDS


class LostTime:
    """Counts from when it is made; called from one thread, at least as often as the rank beats.

    lost = LostTime(session.counters, STARVED_SECONDS)
    while working:
        ...
        lost.count(share)       of the time since the last call
    """

    def __init__(
        self, counters: MutableMapping[str, float], name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`name` is the counter of the time that was lost."""
        self._counters = counters
        self._name = name
        self._clock = clock
        self._counted_at = clock()
        counters[LOOP_SECONDS] = counters[name] = 0.0

    def count(self, share: float) -> None:
        """The time since the last call; `share` of it, from 0 to 1, was lost."""
        now = self._clock()
        passed, self._counted_at = now - self._counted_at, now
        self._counters[LOOP_SECONDS] += passed
        self._counters[self._name] += share * passed
