"""The workers: as many turns at the same time as allowed, each of another job. Called by `operator`.

What a turn does is handed in; here is only when it is called, and what becomes of its error.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Generic

from rljob_operator.adapters.errors import ApiRefused, LeaseLost
from rljob_operator.adapters.metrics import Metrics
from rljob_operator.adapters.work_queue import K, WorkQueue

Turn = Callable[[K], Awaitable[float | None]]
"""Looks at one job; answers when (Unix time) to look again without being asked, or None."""

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
        self._running: set[asyncio.Task[None]] = set()
        self.lease_lost = asyncio.Event()

    def add(self, key: K, delay: float = 0.0) -> None:
        """`key` is to be looked at."""
        self._queue.add(key, time.monotonic() + delay)
        self._changed.set()

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
            taken = self._queue.take(now)
            if taken is None:
                return
            key, since = taken
            self._metrics.queue_wait.observe(now - since)
            task = asyncio.create_task(self._work(key))
            self._running.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._changed.set()

    async def _wait(self) -> None:
        due = self._queue.next_due() if len(self._running) < self._concurrency else None
        timeout = None if due is None else max(0.0, due - time.monotonic())
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            return

    async def _work(self, key: K) -> None:
        started = time.monotonic()
        result = "ok"
        try:
            look_again_at = await asyncio.wait_for(self._turn(key), TURN_SECONDS)
        except Exception as error:  # the edge of a loop that must live
            result = "error"
            self._failed(key, error)
        else:
            self._queue.done(key)
            if look_again_at is not None:
                self.add(key, max(0.0, look_again_at - time.time()))
        finally:
            self._metrics.turn_seconds.labels(result).observe(time.monotonic() - started)

    def _failed(self, key: K, error: Exception) -> None:
        at_least = error.retry_after if isinstance(error, ApiRefused) else 0.0
        delay = self._queue.failed(key, time.monotonic(), at_least)
        self._metrics.turn_errors.labels(type(error).__name__).inc()
        if isinstance(error, LeaseLost):
            self.lease_lost.set()
        expected = isinstance(error, _EXPECTED)
        text = str(error) or type(error).__name__
        _log.warning("%s: %s; again in %.1f s", key, text, delay, exc_info=None if expected else error)


_EXPECTED = (ApiRefused, LeaseLost, OSError, TimeoutError)
