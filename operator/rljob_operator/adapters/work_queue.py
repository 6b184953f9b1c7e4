"""The work queue: which job is looked at next, and when. Pure: it is told the time and waits for nobody.

A key is in work at most once. Added again while it is in work it becomes due once more afterwards, however often it
was added. An alarm goes before progress; what fails comes back later and later. `Workers` drives it.

    queue.add(key, now, Cause.ALARM); taken = queue.take(now); ...; queue.done(key)       or queue.failed(key, now)
"""

import heapq
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SPACING_SECONDS = 0.02
"""Between two turns of one key: a burst of events makes one turn and not one each."""

RISE_SECONDS = 5.0
"""Progress that has been due for so long goes before every alarm that became due after that: it never starves."""

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 30.0
"""Back-off of a key whose turns fail: doubled from the first to the longest."""


class Cause(Enum):
    """Why a key is to be looked at."""

    ALARM = "alarm"
    """A failure, an end, or another wish: the job stands still, or does what nobody wants, until its turn."""
    PROGRESS = "progress"
    """All goes well: the status is to say how far."""


ALL = tuple(Cause)

_HANDICAP = {Cause.ALARM: 0.0, Cause.PROGRESS: RISE_SECONDS}


@dataclass(frozen=True, slots=True)
class Taken(Generic[K]):
    """A key that is in work from now on."""

    key: K
    cause: Cause
    since: float
    """When it became due."""


@dataclass(slots=True)
class _Work:
    started: float
    cause: Cause
    again: dict[Cause, float] = field(default_factory=dict)
    """When it is due once more."""


class WorkQueue(Generic[K]):
    """Keys, why they are due, and when."""

    def __init__(self) -> None:
        self._lines: dict[Cause, _Line[K]] = {cause: _Line() for cause in Cause}
        self._working: dict[K, _Work] = {}
        self._failures: dict[K, int] = {}

    def add(self, key: K, at: float, cause: Cause) -> None:
        """`key` is due at `at`, or earlier if it was so already for that cause."""
        work = self._working.get(key)
        if work is None:
            self._lines[cause].put(key, at)
        else:
            work.again[cause] = min(at, work.again.get(cause, at))

    def take(self, now: float, causes: Collection[Cause] = ALL) -> Taken[K] | None:
        """The next key that is due for one of the causes. Its turn serves every cause that it has by now."""
        due = [(at + _HANDICAP[cause], key) for cause, at, key in self._firsts(causes) if at <= now]
        if not due:
            return None
        _, key = min(due, key=lambda one: one[0])
        times = {cause: at for cause, line in self._lines.items() if (at := line.drop(key)) is not None}
        cause = Cause.ALARM if times.get(Cause.ALARM, now + 1) <= now else Cause.PROGRESS
        self._working[key] = _Work(now, cause)
        return Taken(key, cause, min(times.values()))

    def done(self, key: K) -> None:
        """The turn went well."""
        self._failures.pop(key, None)
        work = self._working.pop(key)
        for cause, at in work.again.items():
            self.add(key, max(at, work.started + SPACING_SECONDS), cause)

    def failed(self, key: K, now: float, at_least: float = 0.0) -> float:
        """The turn failed: it is due again after a delay that doubles, which is returned."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = max(at_least, min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(count, 16)))
        work = self._working.pop(key)
        # Events of meanwhile do not make a failing turn come sooner: they would undo the back-off.
        is_alarm = Cause.ALARM in (work.cause, *work.again)
        self.add(key, now + delay, Cause.ALARM if is_alarm else Cause.PROGRESS)
        return delay

    def next_due(self, causes: Collection[Cause] = ALL) -> float | None:
        """When there is something to take; None: not before something is added or done."""
        return min((at for _, at, _ in self._firsts(causes)), default=None)

    def depth(self, now: float) -> int:
        """Keys that are due and not in work."""
        return len({key for line in self._lines.values() for key in line.due_by(now)})

    def lag(self, now: float) -> float:
        """For how long the key that is due for longest has waited."""
        due = self.next_due()
        return 0.0 if due is None else max(0.0, now - due)

    def _firsts(self, causes: Collection[Cause]) -> list[tuple[Cause, float, K]]:
        found = ((cause, self._lines[cause].first()) for cause in causes)
        return [(cause, *first) for cause, first in found if first is not None]


class _Line(Generic[K]):
    """Keys by when they are due: the earliest time of each."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._order: list[tuple[float, int, K]] = []
        self._count = 0

    def put(self, key: K, at: float) -> None:
        if at < self._due.get(key, float("inf")):
            self._due[key] = at
            self._count += 1  # of two that are due at the same time the one that was put first comes first
            heapq.heappush(self._order, (at, self._count, key))

    def drop(self, key: K) -> float | None:
        return self._due.pop(key, None)

    def first(self) -> tuple[float, K] | None:
        """Entries that were dropped or overtaken by an earlier one go when they come to the front."""
        while self._order:
            at, _, key = self._order[0]
            if self._due.get(key) == at:
                return at, key
            heapq.heappop(self._order)
        return None

    def due_by(self, now: float) -> list[K]:
        return [key for key, at in self._due.items() if at <= now]
