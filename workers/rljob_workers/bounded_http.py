"""An HTTP server of uvicorn whose clients keep neither it nor each other waiting: for the coordinator and the engine.

`BoundedServer` runs an ASGI application at any number of listening sockets, each with bounds of its own. A request that
does not end, an answer that is not read, and connections beyond the bound are closed
(`rljob_api.serving.connections`); requests that are answered never are. Requests are parsed by httptools, which bounds
no head: `_BoundedProtocol` does. Imports neither the application nor torch.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import replace
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from rljob_api.serving.connections import Bounds, Connections, Waits

BOUNDS = Bounds(most=4096, request_seconds=30.0, reader_seconds=60.0)
"""Bounds of each socket. Ranks, their launchers and the threads of a rollout keep a connection or two each."""


_SOCKETS = 4
"""Listening sockets that a process has at most, and one to spare."""
_FILES = _SOCKETS * BOUNDS.most
"""Descriptors that the process may have, as far as the system lets it: 1024 by default on some nodes."""
_OTHER_FILES = 256
"""Descriptors for all but connections."""
_LEAST = 64
"""Connections of a socket, whatever the system lets a process have."""


MOST_HEAD_BYTES = 16384
"""Bytes that the parser may hold before it knows more: a request's line with its headers, or what follows a body."""
MOST_PIPELINED = 64
"""Requests that may wait behind the one that is answered. Clients of ours send the next when they have the answer."""


_CHECK_TICKS = 5
"""uvicorn ticks ten times a second."""


_INVALID = "Invalid HTTP request received."
"""As uvicorn has it."""


_CONNECTION = "rljob.connection"
"""Key in a scope's state."""


class BoundedServer(uvicorn.Server):
    """Serves until it should exit, as its base does."""

    def __init__(self, app: ASGIApp, bounds: Bounds = BOUNDS, **settings: Any) -> None:  # noqa: ANN401 - uvicorn's own
        ports = _Ports(within_files(bounds, _allow_files()))
        # Clients that name another one as their client would be taken for one.
        super().__init__(
            uvicorn.Config(
                _MarkedRequests(app),
                http=cast(Any, partial(_BoundedProtocol, ports)),
                ws="none",
                lifespan="off",
                access_log=False,
                proxy_headers=False,
                **settings,
            )
        )
        self._ports = ports

    async def on_tick(self, counter: int) -> bool:
        """See the base."""
        if counter % _CHECK_TICKS == 0:
            self._ports.close_overdue()
        return await super().on_tick(counter)


class _Ports:
    """The connections of each listening socket, by its address."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._known: dict[object, Connections[_BoundedProtocol]] = {}

    def of(self, transport: asyncio.BaseTransport) -> Connections[_BoundedProtocol]:
        name = transport.get_extra_info("sockname")
        port = name[1] if isinstance(name, tuple) else name  # a socket of all addresses has another one each time
        if port not in self._known:
            self._known[port] = Connections(self._bounds)
        return self._known[port]

    def close_overdue(self) -> None:
        for connections in self._known.values():
            for protocol in connections.overdue():
                protocol.close()


class _BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol of one connection, with what the connection waits for and how much its client may send."""

    def __init__(
        self,
        ports: _Ports,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, _CONNECTION: self}, _loop)
        self._ports = ports
        self._connections: Connections[_BoundedProtocol] | None = None
        self._waits = Waits.REQUEST
        self._is_unread = False
        self._num_held = 0
        """Bytes since the parser last knew more."""

    def waits(self, what: Waits) -> None:
        """Sets what the connection waits for from now on, or once its client has read on."""
        self._waits = what
        if self._connections is not None:
            self._connections.waits(self, Waits.READER if self._is_unread else what)

    def close(self) -> None:
        """Closes the connection at once. To what answers it the client has gone."""
        if self._connections is not None:
            self._connections.closed(self)
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See the base."""
        self._connections = self._ports.of(transport)
        peer = transport.get_extra_info("peername")
        gives_way = self._connections.opened(self, peer[0] if peer else "")
        super().connection_made(transport)
        if gives_way is not None:
            gives_way.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See the base."""
        if self._connections is not None:
            self._connections.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See the base."""
        if self._waits is Waits.NEXT:
            self.waits(Waits.REQUEST)
        self._num_held += len(data)
        super().data_received(data)
        if self._num_held > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(_INVALID)

    def on_headers_complete(self) -> None:
        """See the base."""
        self._num_held = 0
        super().on_headers_complete()
        if len(self.pipeline) > MOST_PIPELINED:
            raise ValueError(f"more than {MOST_PIPELINED} requests wait")  # the parser ends, the connection too

    def on_chunk_header(self) -> None:
        """Begins to count anew: a body in chunks has no end that is known."""
        self._num_held = 0

    def on_body(self, body: bytes) -> None:
        """See the base."""
        self._num_held = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See the base."""
        self._num_held = 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        """See the base."""
        self._is_unread = True
        self.waits(self._waits)
        super().pause_writing()

    def resume_writing(self) -> None:
        """See the base."""
        self._is_unread = False
        self.waits(self._waits)
        super().resume_writing()


class _MarkedRequests:
    """An ASGI application around another: a connection learns when its request is whole, and when it is answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        connection: _BoundedProtocol = scope["state"][_CONNECTION]
        if not _has_body(scope):
            connection.waits(Waits.ANSWER)

        async def received() -> Message:
            message = await receive()
            if not message.get("more_body", False):
                connection.waits(Waits.ANSWER)
            return message

        try:
            await self._app(scope, received, send)
        finally:
            connection.waits(Waits.NEXT)


def _has_body(scope: Scope) -> bool:
    names = {name: value for name, value in scope["headers"] if name in (b"content-length", b"transfer-encoding")}
    return b"transfer-encoding" in names or names.get(b"content-length", b"0") != b"0"


def within_files(bounds: Bounds, files: int) -> Bounds:
    """Bounds of a socket of a process with so many descriptors: accept fails for none of its sockets' connections."""
    return replace(bounds, most=min(bounds.most, max(_LEAST, (files - _OTHER_FILES) // _SOCKETS)))


def _allow_files() -> int:
    """Descriptors that the process may have from now on; `_FILES` is enough where there is no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)
