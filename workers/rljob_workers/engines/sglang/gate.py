"""Who may be at the server: samples come and go, and an update holds new ones back.

A request that waits at the server's own gate, while it is paused, loses its abort there; here it has not been sent yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class Recalled(Exception):
    """The request has to be sent anew: what it would read of the server's cache is of the weights before."""


class Gate:
    """Of one server, in one event loop."""

    def __init__(self) -> None:
        """Open, and nobody inside."""
        self._open = asyncio.Event()
        self._open.set()
        self._vacant = asyncio.Event()
        self._vacant.set()
        self._updates = asyncio.Lock()
        self._inside = 0
        self._unbegun: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """Inside, once the gate is open."""
        while not self._open.is_set():
            await self._open.wait()
        with self._counted():
            yield

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Nobody new comes in; one update at a time."""
        async with self._updates:
            self._open.clear()
            try:
                yield
            finally:
                self._open.set()

    @asynccontextmanager
    async def unbegun(self) -> AsyncIterator[None]:
        """Inside, until the first token has come; Recalled where `recall` was called before that."""
        try:
            async with asyncio.timeout(None) as recalled:
                self._unbegun.add(recalled)
                try:
                    yield
                finally:
                    self._unbegun.discard(recalled)
        except TimeoutError as error:
            if not recalled.expired():  # it is of what was waited for
                raise
            raise Recalled from error

    def recall(self) -> None:
        """Ends the wait of all who are inside and have no token yet."""
        now = asyncio.get_running_loop().time()
        for request in self._unbegun:
            request.reschedule(now)

    async def vacant(self) -> None:
        """Until those who are inside have left."""
        await self._vacant.wait()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._inside += 1
        self._vacant.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._vacant.set()
