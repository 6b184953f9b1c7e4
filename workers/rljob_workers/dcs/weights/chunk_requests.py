"""Requests for chunks on their way: connections to a server of weights that have not sent all of theirs.

Called by the one thread that accepts. Only a connection whose request is whole gets a thread, so that clients which
send nothing, or half of one, cost no thread and keep no receiver waiting.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import time
from dataclasses import dataclass, field

from rljob_api.serving.connections import Bounds, Connections

MAX_REQUEST_BYTES = 4096


LENGTH = struct.Struct(">I")
"""In front of each message."""


BOUNDS = Bounds(most=512, request_seconds=10.0, reader_seconds=10.0)
"""Half of the 1024 descriptors that a process has by default."""


MAX_ACCEPTED = 64


_TURN_MILLISECONDS = 1000
"""How often connections that are late are looked for."""


_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of accept while process or node has no descriptor or memory left. The connection stays in the queue."""
_EXHAUSTED_SECONDS = 0.1
"""Pause after one of these, since the listener stays readable."""


@dataclass(frozen=True, slots=True)
class WholeRequest:
    """The JSON of a connection's first request; the connection blocks from here on."""

    connection: socket.socket
    body: bytes


@dataclass(eq=False, slots=True)
class _Asking:
    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)

    def read(self) -> bytes:
        """The whole request. Raises BlockingIOError before it is there, another error where it never will be."""
        while missing := self._missing():
            piece = self.connection.recv(missing)
            if not piece:
                raise EOFError("the connection was closed")
            self.received += piece
        return bytes(self.received[LENGTH.size :])

    def _missing(self) -> int:
        if len(self.received) < LENGTH.size:
            return LENGTH.size - len(self.received)
        return LENGTH.size + checked_length(bytes(self.received[: LENGTH.size])) - len(self.received)


def checked_length(head: bytes) -> int:
    """Bytes of a message; ValueError for one that is too long, or empty."""
    (length,) = LENGTH.unpack(head)
    if not 0 < length <= MAX_REQUEST_BYTES:
        raise ValueError(f"a message of {length} bytes is none of 1 to {MAX_REQUEST_BYTES}")
    return int(length)


class AwaitedRequests:
    """Connections to one listening socket that have not sent their request."""

    def __init__(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._connections: Connections[_Asking] = Connections(BOUNDS)

    def turn(self) -> list[WholeRequest]:
        """Waits for something to come, and gives the requests that are whole.

        OSError or ValueError once the listener is closed.
        """
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        for asking in self._connections.open():
            poller.register(asking.connection, select.POLLIN)
        poller.poll(_TURN_MILLISECONDS)
        self._accept()
        whole = [request for asking in self._connections.open() if (request := self._read(asking)) is not None]
        for asking in self._connections.overdue():
            self._close(asking)
        return whole

    def close(self) -> None:
        """Closes them all; the listener is the caller's."""
        for asking in self._connections.open():
            self._close(asking)

    def _accept(self) -> None:
        try:
            self._accept_waiting()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            time.sleep(_EXHAUSTED_SECONDS)

    def _accept_waiting(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            for _ in range(MAX_ACCEPTED):
                connection, peer = self._listener.accept()
                connection.setblocking(False)
                gives_way = self._connections.opened(_Asking(connection), peer[0])
                if gives_way is not None:
                    self._close(gives_way)

    def _read(self, asking: _Asking) -> WholeRequest | None:
        try:
            body = asking.read()
        except BlockingIOError:
            return None
        except (OSError, EOFError, ValueError):
            self._close(asking)
            return None
        self._connections.closed(asking)
        asking.connection.setblocking(True)
        return WholeRequest(asking.connection, body)

    def _close(self, asking: _Asking) -> None:
        self._connections.closed(asking)
        asking.connection.close()
