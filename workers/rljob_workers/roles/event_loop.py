"""An event loop in a thread of its own, for a main loop that is none.

Used by the rollout: its engine's client lives in one event loop, while the rank's main loop claims, beats and puts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")


class EventLoopThread:
    """The thread and its loop.

    with closing(EventLoopThread("generation")) as events:
        events.call(engine.abort_all())
    """

    def __init__(self, name: str) -> None:
        """Runs at once."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, _Answer]) -> Future[_Answer]:
        """Runs `work` as a task; cancelling the future cancels the task."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        """Runs `work` and waits for it, never from the loop's own thread. What it waits for has its own deadlines."""
        assert threading.current_thread() is not self._thread, "the loop would wait for itself"
        return self.begin(work).result()

    def close(self) -> None:
        """Cancels all tasks, waits until they have cleaned up, and ends the thread."""
        self.call(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def watched(work: Coroutine[Any, Any, _Answer], look: Callable[[], object], *, every: float) -> _Answer:
    """The answer. `look` is called every so many seconds meanwhile, and may raise to give the work up.

    Work that is given up, or whose caller is cancelled, is waited for until it has cleaned up.
    """
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=every))[0]:
            look()
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
