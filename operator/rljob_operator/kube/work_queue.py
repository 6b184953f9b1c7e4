"""The work queue: jobs due for a turn, by urgency and time, and the workers that take turns from it.

A turn is passed in as a function; here only its time, its concurrency and the retry after its error are decided. The
cache and the coordinators enqueue through `Workers.wake`.
"""

import asyncio
import heapq
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from rljob_operator.kube.errors import AdapterError, ApiRefused, LeadershipLost
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.rate_limit import Budget, Rate, backoff_seconds

K = TypeVar("K", bound=Hashable)


SPACING_SECONDS = 0.02
"""Between two turns of one key: a burst of events makes one turn and not one each."""


RISE_SECONDS = 5.0
"""Progress that has been due for so long goes before every alarm that became due after that: it never starves."""


TURNS = Rate(burst=60, every_seconds=0.5)
"""Of one key. A job that starts, or whose nodes are lost, has dozens of turns; one about which there is always
something new leaves the others their turns."""


FIRST_DELAY_SECONDS = 0.1


LONGEST_DELAY_SECONDS = 30.0
"""Back-off of a key whose turns fail: doubled from the first to the longest. A server that names a longer time, as
something in front of it may, is not believed: it would silence alarms, too."""


class Urgency(Enum):
    """How soon a key needs a turn."""

    ALARM = "alarm"
    """A failure, an end, or another user request: the job stalls, or does what is not wanted, until its turn."""
    PROGRESS = "progress"
    """All goes well: the status is to show how far."""


ALL = tuple(Urgency)


_HANDICAP = {Urgency.ALARM: 0.0, Urgency.PROGRESS: RISE_SECONDS}


@dataclass(frozen=True, slots=True)
class Taken(Generic[K]):
    """A key that is in work from now on."""

    key: K
    urgency: Urgency
    since: float
    """When it became due."""


@dataclass(slots=True)
class _Work:
    started: float
    is_alarm: bool
    """Whether the turn is for an alarm too, due now or later: the turn that serves it may fail."""
    again: dict[Urgency, float] = field(default_factory=dict)
    """When it is due once more."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """What the failed turns of a key have come to."""

    count: int
    not_before: Mapping[Urgency, float]
    """When it may come again."""


class WorkQueue(Generic[K]):
    """Keys, how urgent they are, and when they are due."""

    def __init__(self) -> None:
        self._lines: dict[Urgency, _Line[K]] = {urgency: _Line() for urgency in Urgency}
        self._working: dict[K, _Work] = {}
        self._refused: dict[K, _Refused] = {}
        self._budgets: OrderedDict[K, Budget] = OrderedDict()
        """Of keys that had a turn lately; who had his last first."""

    def add(self, key: K, at: float, urgency: Urgency) -> None:
        """`key` is due at `at`, or earlier if it was so already with that urgency; later where its turns fail."""
        work = self._working.get(key)
        if work is None:
            refused, budget = self._refused.get(key), self._budgets.get(key)
            at = at if refused is None else max(at, refused.not_before[urgency])
            self._lines[urgency].put(key, at if budget is None else budget.free_at(at))
        else:
            work.again[urgency] = min(at, work.again.get(urgency, at))

    def take(self, now: float, urgencies: Collection[Urgency] = ALL) -> Taken[K] | None:
        """The next key that is due with one of the urgencies. Its turn serves everything that was due for it."""
        due = [(at + _HANDICAP[urgency], key) for urgency, at, key in self._firsts(urgencies) if at <= now]
        if not due:
            return None
        _, key = min(due, key=lambda one: one[0])
        times = {urgency: at for urgency, line in self._lines.items() if (at := line.drop(key)) is not None}
        urgency = Urgency.ALARM if times.get(Urgency.ALARM, now + 1) <= now else Urgency.PROGRESS
        self._working[key] = _Work(now, Urgency.ALARM in times)
        self._spend(key, now)
        return Taken(key, urgency, times[urgency])

    def done(self, key: K) -> None:
        """The turn went well."""
        self._refused.pop(key, None)
        work = self._working.pop(key)
        for urgency, at in work.again.items():
            self.add(key, max(at, work.started + SPACING_SECONDS), urgency)

    def failed(self, key: K, now: float, at_least: float = 0.0) -> float:
        """The turn failed: it is due again after a delay that doubles, which is returned."""
        refused = self._refused.get(key)
        count = 1 if refused is None else refused.count + 1
        at_least = min(LONGEST_DELAY_SECONDS, at_least)
        delay = max(at_least, backoff_seconds(count, FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS))
        not_before = {Urgency.ALARM: now + at_least, Urgency.PROGRESS: now + delay}
        self._refused[key] = _Refused(count, not_before)
        work = self._working.pop(key)
        is_alarm = work.is_alarm or Urgency.ALARM in work.again
        self.add(key, now + delay, Urgency.ALARM if is_alarm else Urgency.PROGRESS)
        return delay

    def next_due(self, urgencies: Collection[Urgency] = ALL) -> float | None:
        """When there is something to take; None: not before something is added or done."""
        return min((at for _, at, _ in self._firsts(urgencies)), default=None)

    def depth(self, now: float) -> int:
        """Keys that are due and not in work."""
        return len({key for line in self._lines.values() for key in line.due_by(now)})

    def lag(self, now: float) -> float:
        """For how long the key that is due for longest has waited."""
        due = self.next_due()
        return 0.0 if due is None else max(0.0, now - due)

    def _spend(self, key: K, now: float) -> None:
        self._budgets.setdefault(key, Budget(TURNS)).spend(now)
        self._budgets.move_to_end(key)
        while next(iter(self._budgets.values())).is_whole(now):
            self._budgets.popitem(last=False)

    def _firsts(self, urgencies: Collection[Urgency]) -> list[tuple[Urgency, float, K]]:
        found = ((urgency, self._lines[urgency].first()) for urgency in urgencies)
        return [(urgency, *first) for urgency, first in found if first is not None]


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


SETTLE_SECONDS = 0.2
"""What only moves a status forward waits for what follows at once: a new pod alone is news half a dozen times."""


ALARM_SHARE = 4
"""One in so many turns at the same time is reserved for alarms: the others may all wait for a slow API server."""


@dataclass(frozen=True, slots=True)
class NextTurn:
    """When a turn wants the next one of its job although nothing changes."""

    in_seconds: float
    """From the end of the turn on; 0 or less: at once."""
    urgency: Urgency = Urgency.PROGRESS


Turn = Callable[[K], Awaitable[NextTurn | None]]
"""Looks at one job."""


TURN_SECONDS = 120.0
"""A turn that takes longer is given up: every request in it has a deadline, together they may not have one."""


_log = logging.getLogger(__name__)


class Workers(Generic[K]):
    """Drives a `WorkQueue`."""

    def __init__(self, turn: Turn[K], concurrency: int, metrics: Metrics) -> None:
        self._turn = turn
        self._concurrency = concurrency
        self._metrics = metrics
        self._queue: WorkQueue[K] = WorkQueue()
        self._changed = asyncio.Event()
        self._running: dict[asyncio.Task[None], Urgency] = {}
        self.lease_lost = asyncio.Event()

    def wake(self, key: K, urgency: Urgency) -> None:
        """Something was observed: `key` gets a turn, for an alarm at once."""
        self._add(key, 0.0 if urgency is Urgency.ALARM else SETTLE_SECONDS, urgency)

    def lag(self) -> float:
        """For how long the longest waiting job has waited."""
        return self._queue.lag(time.monotonic())

    def depth(self) -> int:
        """How many jobs wait for a turn."""
        return self._queue.depth(time.monotonic())

    async def run(self) -> None:
        """Until cancelled; turns in work are then cancelled too."""
        try:
            while True:
                self._changed.clear()
                self._start_what_is_due()
                await self._wait()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _start_what_is_due(self) -> None:
        while len(self._running) < self._concurrency:
            now = time.monotonic()
            taken = self._queue.take(now, self._served())
            if taken is None:
                return
            self._metrics.queue_wait.labels(taken.urgency.value).observe(now - taken.since)
            task = asyncio.create_task(self._work(taken))
            self._running[task] = taken.urgency
            task.add_done_callback(self._finished)

    def _served(self) -> tuple[Urgency, ...]:
        """Which urgencies may have the next turn."""
        progress = sum(urgency is Urgency.PROGRESS for urgency in self._running.values())
        return ALL if progress < self._concurrency - self._concurrency // ALARM_SHARE else (Urgency.ALARM,)

    def _finished(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._changed.set()

    async def _wait(self) -> None:
        due = self._queue.next_due(self._served()) if len(self._running) < self._concurrency else None
        timeout = None if due is None else max(0.0, due - time.monotonic())
        # Not by `wait_for`: that of Python 3.11 forgets a cancellation that comes together with the change.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()

    async def _work(self, taken: Taken[K]) -> None:
        started = time.monotonic()
        result = "ok"
        limit = asyncio.timeout(TURN_SECONDS)
        try:
            async with limit:
                again = await self._turn(taken.key)
        except Exception as error:  # the edge of a loop that must live
            result = "error"
            too_long = TimeoutError(f"a turn was given up, since it took longer than {TURN_SECONDS:g} s")
            self._failed(taken.key, too_long if limit.expired() else error)
        else:
            self._queue.done(taken.key)
            if again is not None:
                self._add(taken.key, max(0.0, again.in_seconds), again.urgency)
        finally:
            self._metrics.turn_seconds.labels(result).observe(time.monotonic() - started)

    def _add(self, key: K, delay: float, urgency: Urgency) -> None:
        self._queue.add(key, time.monotonic() + delay, urgency)
        self._changed.set()

    def _failed(self, key: K, error: Exception) -> None:
        at_least = error.retry_after if isinstance(error, ApiRefused) else 0.0
        delay = self._queue.failed(key, time.monotonic(), at_least)
        self._metrics.turn_errors.labels(type(error).__name__).inc()
        if isinstance(error, LeadershipLost):
            self.lease_lost.set()
        expected = isinstance(error, _EXPECTED)
        text = str(error) or type(error).__name__
        _log.warning("%s: %s; again in %.1f s", key, text, delay, exc_info=None if expected else error)


_EXPECTED = (AdapterError, OSError, TimeoutError)
