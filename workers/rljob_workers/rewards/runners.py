"""Where a user's reward function runs: beside the caller, so that groups overlap and one that hangs is noticed.

For `custom` only. A runner never judges results or time; it says when a call began. Its threads do not keep the process
alive, since a function that hangs cannot be ended.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljob_workers.rewards.base import Answer

MAX_THREADS = 16
"""Groups in work at once. Plain Python gains nothing beyond a core; waiting for servers does."""

Clock = Callable[[], float]


class Call:
    """One group in work."""

    def __init__(self, group: Sequence[Answer]) -> None:
        self.group = group
        self.future: Future[Any] = Future()
        self.began: float | None = None
        """By the runner's clock; None while it waits its turn."""


class Runner(ABC):
    """Starts calls of one function."""

    @abstractmethod
    def start(self, group: Sequence[Answer]) -> Call:
        """Begins (or queues) the call for one group; the result or exception comes through its future."""

    @abstractmethod
    def abandon(self) -> None:
        """Drops calls that wait and leaves those that run to themselves; later calls start afresh."""


class ThreadRunner(Runner):
    """For a plain function."""

    def __init__(self, function: Callable[[Sequence[Answer]], Any], *, clock: Clock = time.monotonic) -> None:
        self._function = function
        self._clock = clock
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._num_threads = 0

    def start(self, group: Sequence[Answer]) -> Call:
        """Adds a thread as long as there are fewer than `MAX_THREADS`."""
        call = Call(group)
        self._calls.put(call)
        if self._num_threads < MAX_THREADS:
            self._num_threads += 1
            threading.Thread(target=self._serve, args=(self._calls,), name="rljob-reward", daemon=True).start()
        return call

    def abandon(self) -> None:
        """The old threads end after what they are at; the next call gets new ones."""
        calls, self._calls = self._calls, queue.SimpleQueue()
        while not calls.empty():
            calls.get()
        for _ in range(self._num_threads):
            calls.put(None)
        self._num_threads = 0

    def _serve(self, calls: queue.SimpleQueue[Call | None]) -> None:
        while (call := calls.get()) is not None:
            call.began = self._clock()
            try:
                call.future.set_result(self._function(call.group))
            except BaseException as error:  # the caller decides, also about SystemExit in a user's function
                call.future.set_exception(error)


class LoopRunner(Runner):
    """For an async function: all groups at once on one event loop, kept between calls as its clients may be."""

    def __init__(
        self, function: Callable[[Sequence[Answer]], Awaitable[Any]], *, clock: Clock = time.monotonic
    ) -> None:
        self._function = function
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, group: Sequence[Answer]) -> Call:
        """Starts the loop's thread at the first call."""
        call = Call(group)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=(self._loop,), name="rljob-reward-loop", daemon=True).start()
        self._loop.call_soon_threadsafe(self._spawn, call)
        return call

    def abandon(self) -> None:
        """Cancels what runs and ends the loop, unless a call blocks it: then it stays behind."""
        loop, self._loop = self._loop, None
        tasks, self._tasks = self._tasks, set()
        if loop is not None:
            loop.call_soon_threadsafe(_stop, loop, tasks)

    def _spawn(self, call: Call) -> None:
        tasks = self._tasks
        task = asyncio.get_running_loop().create_task(self._serve(call))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _serve(self, call: Call) -> None:
        call.began = self._clock()
        try:
            call.future.set_result(await self._function(call.group))
        except asyncio.CancelledError:
            call.future.cancel()
            raise
        except BaseException as error:  # the caller decides, also about SystemExit in a user's function
            call.future.set_exception(error)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, tasks: set[asyncio.Task[None]]) -> None:
    for task in list(tasks):
        task.cancel()
    loop.call_soon(loop.call_soon, loop.stop)  # after the cancelled tasks had their turn
