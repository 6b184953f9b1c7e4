"""The workers: as many turns at the same time as allowed, each of another job. Called by `operator`.

What a turn does is handed in; here is only when it is called, and what becomes of its error.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic

from rljob_operator.adapters.errors import AdapterError, ApiRefused, LeaseLost
from rljob_operator.adapters.metrics import Metrics
from rljob_operator.adapters.work_queue import ALL, K, Taken, Urgency, WorkQueue

SETTLE_SECONDS = 0.2
"""What only moves a status forward waits for what follows at once: a new pod alone is news half a dozen times."""

ALARM_SHARE = 4
"""One in so many turns at the same time is kept for alarms: the others may all wait for a slow API server."""


@dataclass(frozen=True, slots=True)
class Look:
    """When a turn wants the job to be looked at again without being asked."""

    at: float
    """Unix time."""
    urgency: Urgency = Urgency.PROGRESS


Turn = Callable[[K], Awaitable[Look | None]]
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
        """Something was seen: `key` is to be looked at, for an alarm at once."""
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
                self._add(taken.key, max(0.0, again.at - time.time()), again.urgency)
        finally:
            self._metrics.turn_seconds.labels(result).observe(time.monotonic() - started)

    def _add(self, key: K, delay: float, urgency: Urgency) -> None:
        self._queue.add(key, time.monotonic() + delay, urgency)
        self._changed.set()

    def _failed(self, key: K, error: Exception) -> None:
        at_least = error.retry_after if isinstance(error, ApiRefused) else 0.0
        delay = self._queue.failed(key, time.monotonic(), at_least)
        self._metrics.turn_errors.labels(type(error).__name__).inc()
        if isinstance(error, LeaseLost):
            self.lease_lost.set()
        expected = isinstance(error, _EXPECTED)
        text = str(error) or type(error).__name__
        _log.warning("%s: %s; again in %.1f s", key, text, delay, exc_info=None if expected else error)


_EXPECTED = (AdapterError, OSError, TimeoutError)
