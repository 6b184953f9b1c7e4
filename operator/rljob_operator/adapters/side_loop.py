"""An event loop in a thread of its own, for what cannot wait for the main loop: the Lease and the kubelet's probes.

    async with SideLoop() as side:
        await side.run(lease.acquire())                          # made there, awaited here
        keeping = side.begin(lease.keep())

Called by the operator's process. On a loaded node the main loop is busy for seconds (it reads a list of thousands of
pods in one go); the interpreter switches threads every few milliseconds, so that this loop turns meanwhile. What
lives in it (sessions of HTTP, locks) is made in it and used nowhere else.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

_T = TypeVar("_T")


class SideLoop:
    """Use as an asynchronous context manager; what still runs in it at the end is cancelled, and the thread joined."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name="side loop", daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    def begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Future[_T]:
        """Starts this in the side loop. Cancelling the future cancels it there."""
        there: Future[_T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return asyncio.wrap_future(there)

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Its result, or what it raised."""
        return await self.begin(work)

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
