"""Where a user's reward function runs: beside the caller, so that groups overlap and one that hangs is noticed.

For `custom` only; several threads may use one runner. A runner judges neither results nor time; it notes when a
call began. Its threads do not keep the process alive, since a function that hangs cannot be ended.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

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
        """Time of the runner's clock; None while it waits its turn."""
        self.dropped = False
        """Its caller has given it up."""


class Runner(ABC):
    """Starts calls of one function."""

    @abstractmethod
    def start(self, group: Sequence[Answer]) -> Call:
        """Begins (or queues) the call for one group; the result or exception comes through its future."""

    @abstractmethod
    def drop(self, calls: Sequence[Call]) -> None:
        """Gives these calls up: those that have not begun never do. Calls of others go on."""

    @abstractmethod
    def renew(self) -> None:
        """A call hangs: later ones must not meet it."""

    @property
    @abstractmethod
    def num_hanging(self) -> int:
        """Threads that calls which were given up still occupy."""

    @abstractmethod
    def close(self) -> None:
        """No call comes any more; threads end when they can. May be called twice."""


class ThreadRunner(Runner):
    """For a plain function."""

    def __init__(self, function: Callable[[Sequence[Answer]], Any], *, clock: Clock = time.monotonic) -> None:
        self._function = function
        self._clock = clock
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = 0
        """Threads that will come back for another call."""
        self._num_hanging = 0

    def start(self, group: Sequence[Answer]) -> Call:
        """Adds a thread as long as there are fewer than `MAX_THREADS`."""
        call = Call(group)
        self._calls.put(call)
        with self._lock:
            if self._num_threads < MAX_THREADS:
                self._add_thread()
        return call

    def drop(self, calls: Sequence[Call]) -> None:
        """A thread that is in a dropped call may never come back: another takes its place."""
        with self._lock:
            for call in calls:
                if not call.dropped and not call.future.cancel() and not call.future.done():
                    self._num_threads -= 1
                    self._num_hanging += 1
                    self._add_thread()
                call.dropped = True

    def renew(self) -> None:
        """Nothing: `drop` has replaced the threads that hang."""

    @property
    def num_hanging(self) -> int:
        """Threads in calls that were dropped."""
        return self._num_hanging

    def close(self) -> None:
        """Threads end after what waits."""
        with self._lock:
            for _ in range(self._num_threads):
                self._calls.put(None)
            self._num_threads = 0

    def _add_thread(self) -> None:
        self._num_threads += 1
        threading.Thread(target=self._serve, name="rljob-reward", daemon=True).start()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            if not call.future.set_running_or_notify_cancel():
                continue
            call.began = self._clock()
            outcome = self._outcome(call.group)
            with self._lock:
                _settle(call.future, outcome)
                if call.dropped:
                    self._num_hanging -= 1
                    return

    def _outcome(self, group: Sequence[Answer]) -> Any:  # noqa: ANN401 - users return anything
        try:
            return self._function(group)
        except BaseException as error:  # the caller decides, also about SystemExit in a user's function
            return _Raised(error)


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _settle(future: Future[Any], outcome: object) -> None:
    if isinstance(outcome, _Raised):
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome)


class LoopRunner(Runner):
    """For an async function: all groups at once on one event loop, reused between calls as its clients may be."""

    def __init__(
        self,
        function: Callable[[Sequence[Answer]], Awaitable[Any]],
        *,
        at_end: Callable[[], Coroutine[Any, Any, None]] | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """`at_end` runs on a loop after its last call, and closes what the function keeps open there."""
        self._function = function
        self._at_end = at_end
        self._clock = clock
        self._lock = threading.Lock()
        self._loop: _LoopThread | None = None
        self._left: list[_LoopThread] = []
        """Threads that later calls do not meet any more."""

    def start(self, group: Sequence[Answer]) -> Call:
        """Starts the loop's thread at the first call."""
        call = Call(group)
        call.began = self._clock()  # not when it first runs: it waits for no turn, but another may block the loop
        with self._lock:
            if self._loop is None:
                self._loop = _LoopThread(self._at_end)
            self._loop.run(call.future, self._outcome(group))
        return call

    def drop(self, calls: Sequence[Call]) -> None:
        """Cancels what is not done."""
        for call in calls:
            call.dropped = True
            call.future.cancel()

    def renew(self) -> None:
        """Later calls get a new loop; the old one ends after its calls, or stays behind if one of them blocks it."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                self._left = [*(left for left in self._left if left.is_alive), loop]
        if loop is not None:
            loop.finish()

    @property
    def num_hanging(self) -> int:
        """Loops that a call blocks, or that wait for their last calls."""
        return sum(left.is_alive for left in self._left)

    def close(self) -> None:
        """The loop ends after its calls."""
        self.renew()

    async def _outcome(self, group: Sequence[Answer]) -> Any:  # noqa: ANN401 - users return anything
        try:
            return await self._function(group)
        except BaseException as error:  # the caller decides; SystemExit would end the loop
            return _Raised(error)


class _LoopThread:
    """An event loop in a thread, with the tasks that it runs."""

    def __init__(self, at_end: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        self._at_end = at_end
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._finishing = False
        self._ending: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="rljob-reward-loop", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it has calls left, or one that blocks it."""
        return self._thread.is_alive()

    def run(self, future: Future[Any], work: Any) -> None:  # noqa: ANN401 - a coroutine of whatever users return
        """Runs the coroutine `work` for `future`; cancelling the future cancels it."""
        self._loop.call_soon_threadsafe(self._spawn, future, work)

    def finish(self) -> None:
        """Ends when nothing is left to run."""
        self._loop.call_soon_threadsafe(self._finish)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _spawn(self, future: Future[Any], work: Any) -> None:  # noqa: ANN401 - see `run`
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._end(future, done))
        future.add_done_callback(lambda done: self._cancel(task) if done.cancelled() else None)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        self._loop.call_soon_threadsafe(task.cancel)

    def _end(self, future: Future[Any], task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            future.cancel()
        elif future.set_running_or_notify_cancel():
            _settle(future, task.result())
        self._end_if_idle()

    def _finish(self) -> None:
        self._finishing = True
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if not self._finishing or self._tasks:
            return
        if self._at_end is None:
            self._loop.stop()
            return
        self._ending = self._loop.create_task(self._at_end())  # a loop alone does not keep its tasks
        self._ending.add_done_callback(lambda _: self._loop.stop())
