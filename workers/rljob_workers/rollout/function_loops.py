"""Event loops that users' rollout functions run in: beside the engine's, and replaced when one is blocked.

For the stage that calls functions. A function that blocks cannot be ended, so that its loop stays behind.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from rljob_workers.user_functions import thread_place

_Answer = TypeVar("_Answer")


BLOCKED_SECONDS = 5.0
"""From here on a loop that runs nothing is blocked: longer than a function computes between two awaits."""


class _FunctionLoop:
    """One loop and its thread, which never keeps the process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asked_at: float | None = None
        """When the loop was asked for a sign of life that it has not given yet."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="rollout-function", daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, _Answer]) -> Future[_Answer]:
        """Cancelling the future cancels the task."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def retire(self) -> None:
        """Ends by itself when its tasks have ended, which are not cancelled; waits for nothing."""
        self.begin(self._end_when_alone())

    def blocked(self) -> str | None:
        """The place in a user's code that blocks the loop, as ` (FILE, line N)`, or None. Asks it, at each call."""
        now, asked_at = self._clock(), self._asked_at  # its own thread may answer in between
        if asked_at is None:
            self._asked_at = now
            self._loop.call_soon_threadsafe(self._answered)
            return None
        if now - asked_at <= BLOCKED_SECONDS:
            return None
        return thread_place(self._thread.ident)

    def _answered(self) -> None:
        self._asked_at = None

    @property
    def is_alive(self) -> bool:
        """Whether a task is left, or blocks it."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _end_when_alone(self) -> None:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        self._loop.stop()


class FunctionLoops:
    """The loop that functions begin in now, and those that were left."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Opens nothing."""
        self._clock = clock
        self._current: _FunctionLoop | None = None
        self._left: list[_FunctionLoop] = []

    def begin(self, work: Coroutine[Any, Any, _Answer]) -> Future[_Answer]:
        """Runs `work`; cancelling the future cancels it."""
        if self._current is None:
            self._current = _FunctionLoop(self._clock)
        return self._current.begin(work)

    def renew(self) -> None:
        """A function does not return: those that begin later must not meet it."""
        current, self._current = self._current, None
        if current is not None:
            current.retire()
            self._left = [*(loop for loop in self._left if loop.is_alive), current]

    def blocked(self) -> str | None:
        """The place in a function that blocks the loop which functions begin in now; None: none does."""
        return None if self._current is None else self._current.blocked()

    def close(self) -> None:
        """Nothing begins any more; loops end when their functions do."""
        self.renew()

    @property
    def num_left(self) -> int:
        """Loops that a function blocks, or that wait for their last ones."""
        return sum(loop.is_alive for loop in self._left)
