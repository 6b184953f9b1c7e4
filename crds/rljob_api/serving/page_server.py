"""A server of pages in an event loop of asyncio, within bounds of its connections. The operator's probes and metrics.

Each page is a coroutine function without arguments, called for every request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import cast

from rljob_api.serving.connections import Bounds, Connections, Waits
from rljob_api.serving.pages import NO_QUESTION, PageRequest, Reply, not_found

Pages = Mapping[str, Callable[[], Awaitable[Reply]]]
"""Path -> what answers it."""


BOUNDS = Bounds(most=256, request_seconds=5.0, reader_seconds=5.0)


_SWEEP_SECONDS = 0.5


_log = logging.getLogger(__name__)


class PageServer:
    """Serves until `close`.

    server = await PageServer.open(pages, host, port)      # OSError: the port is taken
    await server.close()
    """

    def __init__(self, pages: Pages, bounds: Bounds = BOUNDS) -> None:
        self._pages = pages
        self._connections: Connections[_Client] = Connections(bounds)
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, pages: Pages, host: str | None, port: int, bounds: Bounds = BOUNDS) -> PageServer:
        """Listens; `host` None: at every address."""
        made = cls(pages, bounds)
        loop = asyncio.get_running_loop()
        made._server = await loop.create_server(lambda: _Client(made._pages, made._connections), host, port)
        made._sweep = asyncio.create_task(made._close_overdue(), name="connections")
        return made

    @property
    def port(self) -> int:
        """The one that it listens at."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Listens no more; open connections are closed."""
        assert self._server is not None
        assert self._sweep is not None
        self._sweep.cancel()
        self._server.close()
        for client in self._connections.open():
            client.close()

    async def _close_overdue(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            for client in self._connections.overdue():
                client.close()


class _Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, pages: Pages, connections: Connections[_Client]) -> None:
        self._pages = pages
        self._connections = connections
        self._request = PageRequest()
        self._transport: asyncio.Transport | None = None
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See the base."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        gives_way = self._connections.opened(self, peer[0] if peer else "")
        if gives_way is not None:
            gives_way.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See the base."""
        del exc
        self._connections.closed(self)
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        """See the base."""
        if self._answering is None and self._request.take(data):
            self._connections.waits(self, Waits.ANSWER)
            self._answering = asyncio.create_task(self._answer())

    def eof_received(self) -> bool:
        """See the base. A client that sends no more may still read its answer."""
        return self._answering is not None

    def close(self) -> None:
        """At once: what was not read is lost."""
        self._connections.closed(self)
        if self._transport is not None:
            self._transport.abort()

    async def _answer(self) -> None:
        try:
            reply = await self._reply()
        except Exception:  # the edge of a server that must live: a fault of ours costs this answer
            _log.exception("a page failed")
            reply = Reply(HTTPStatus.INTERNAL_SERVER_ERROR, "the page failed; the log says how\n")
        assert self._transport is not None
        self._connections.waits(self, Waits.READER)
        self._transport.write(self._request.answer(reply))
        self._transport.close()  # once the answer was sent

    async def _reply(self) -> Reply:
        path = self._request.path
        if path is None:
            return NO_QUESTION
        page = self._pages.get(path)
        return await page() if page is not None else not_found(self._pages)
