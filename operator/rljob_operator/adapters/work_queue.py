"""The work queue: which job is looked at next, and when. Pure: it is told the time and waits for nobody.

A key is in work at most once. Added again while it is in work it becomes due once more afterwards, however often it
was added. What fails comes back later and later. `Workers` drives it.

    queue.add(key, now); key = queue.take(now); ...; queue.done(key)       or queue.failed(key, now)
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SPACING_SECONDS = 0.02
"""Between two turns of one key: a burst of events makes one turn and not one each."""

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 30.0
"""Back-off of a key whose turns fail: doubled from the first to the longest."""


class WorkQueue(Generic[K]):
    """Keys and when they are due."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._order: list[tuple[float, int, K]] = []
        self._count = 0
        self._working: dict[K, float] = {}
        self._again: dict[K, float] = {}
        self._failures: dict[K, int] = {}

    def add(self, key: K, at: float) -> None:
        """`key` is due at `at`, or earlier if it was so already."""
        if key in self._working:
            self._again[key] = min(at, self._again.get(key, at))
        elif at < self._due.get(key, float("inf")):
            self._put(key, at)

    def take(self, now: float) -> tuple[K, float] | None:
        """The key that is due for longest and since when; it is in work from now on."""
        key = self._first()
        if key is None or self._due[key] > now:
            return None
        heapq.heappop(self._order)
        since = self._due.pop(key)
        self._working[key] = now
        return key, since

    def done(self, key: K) -> None:
        """The turn went well."""
        self._failures.pop(key, None)
        self._finish(key)

    def failed(self, key: K, now: float, at_least: float = 0.0) -> float:
        """The turn failed: it is due again after a delay that doubles, which is returned."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = max(at_least, min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(count, 16)))
        # Events do not make a failing turn come sooner: they would undo the back-off.
        self._again[key] = now + delay
        self._finish(key)
        return delay

    def forget(self, key: K) -> None:
        """The key is gone: it is not due any more, nor again after the turn that it may be in."""
        self._due.pop(key, None)
        self._again.pop(key, None)
        self._failures.pop(key, None)

    def next_due(self) -> float | None:
        """When there is something to take; None: not before something is added or done."""
        key = self._first()
        return None if key is None else self._due[key]

    def depth(self, now: float) -> int:
        """Keys that are due and not in work."""
        return sum(at <= now for at in self._due.values())

    def lag(self, now: float) -> float:
        """For how long the key that is due for longest has waited."""
        due = self.next_due()
        return 0.0 if due is None else max(0.0, now - due)

    def _finish(self, key: K) -> None:
        started = self._working.pop(key)
        again = self._again.pop(key, None)
        if again is not None:
            self.add(key, max(again, started + SPACING_SECONDS))

    def _put(self, key: K, at: float) -> None:
        self._due[key] = at
        self._count += 1
        heapq.heappush(self._order, (at, self._count, key))

    def _first(self) -> K | None:
        """Entries that were overtaken by an earlier one, or forgotten, are dropped when they come to the front."""
        while self._order:
            at, _, key = self._order[0]
            if self._due.get(key) == at:
                return key
            heapq.heappop(self._order)
        return None
