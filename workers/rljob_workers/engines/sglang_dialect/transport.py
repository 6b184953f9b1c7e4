"""JSON over kept-alive HTTP connections, each wait bounded by a deadline.

Used by the client only. Connection errors become EngineGone, deadlines EngineTimeout; a refusal is the caller's to
judge, once it knows whose it is.
"""

from __future__ import annotations

import http.client
import io
import select
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from rljob_workers.engines.errors import EngineGone, EngineTimeout
from rljob_workers.engines.sglang_dialect.names import INCARNATION_HEADER

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_HTTP_OK = 200


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, whatever its status."""

    status: int
    body: Any
    """Parsed JSON, or the text where it is none: SGLang answers some control calls in plain text."""
    incarnation: str | None
    """None: the server does not say."""
    refusal: str | None
    """The server's sentence where the status is not 200."""


class _DeadlineSocket:
    """A socket whose every wait ends at the deadline, as `http.client` wants one."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self.deadline = 0.0

    def sendall(self, data: ReadableBuffer) -> None:
        self.wait_at_most()
        self._raw.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self), 1 << 16)

    def receive_into(self, buffer: WriteableBuffer) -> int:
        self.wait_at_most()
        return self._raw.recv_into(buffer)

    def wait_at_most(self) -> None:
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._raw.settimeout(remaining)

    def is_stale(self) -> bool:
        """Between two requests nothing may come: what is readable is the server's end of the connection."""
        return bool(select.select([self._raw], [], [], 0)[0])

    def close(self) -> None:
        self._raw.close()


class _DeadlineReader(io.RawIOBase):
    def __init__(self, owner: _DeadlineSocket) -> None:
        self._owner = owner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._owner.receive_into(buffer)


class Transport:
    """A pool of connections to one server; a request takes an idle one or opens another. Thread-safe."""

    def __init__(self, url: str) -> None:
        """`url`: http://host:port. Nothing is opened yet."""
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise ValueError(f"engine_url: {url!r} is not of the form http://host:port.")
        self.url = url
        self._address = (parts.hostname, parts.port)
        self._idle: list[_DeadlineSocket] = []
        self._lock = threading.Lock()

    def request(self, method: str, path: str, body: object | None, *, deadline: float) -> Reply:
        """Sends one request and reads its reply. A deadline is in monotonic seconds.

        A failed request is never sent again here: the server may be working on it.
        """
        what = f"{method} {path} of the engine at {self.url}"
        connected: _DeadlineSocket | None = None
        try:
            connected = self._take(deadline)
            response, raw = self._exchange(connected, method, path, body)
        except TimeoutError as error:
            self._close(connected)
            raise EngineTimeout(f"{what} was not answered within the deadline.") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._close(connected)
            raise EngineGone(
                f"{what} broke off ({type(error).__name__}: {error}); the server died or was replaced."
            ) from error
        if response.will_close:
            connected.close()
        else:
            with self._lock:
                self._idle.append(connected)
        parsed = _parse(raw)
        refusal = None
        if response.status != _HTTP_OK:
            refusal = f"{what} was refused with {response.status}: {_sentence(parsed)}"
        return Reply(response.status, parsed, response.headers.get(INCARNATION_HEADER), refusal)

    def close(self) -> None:
        """Closes idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self, deadline: float) -> _DeadlineSocket:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            connection.deadline = deadline
            if not connection.is_stale():
                return connection
            connection.close()
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        raw = socket.create_connection(self._address, timeout=remaining)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened = _DeadlineSocket(raw)
        opened.deadline = deadline
        return opened

    def _exchange(
        self, connection: _DeadlineSocket, method: str, path: str, body: object | None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        payload = b"" if body is None else orjson.dumps(body)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._address[0]}:{self._address[1]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        connection.sendall(head.encode("ascii") + payload)
        response = http.client.HTTPResponse(connection, method=method)  # type: ignore[arg-type]  # all of a socket that it uses
        response.begin()
        return response, response.read()

    @staticmethod
    def _close(connection: _DeadlineSocket | None) -> None:
        if connection is not None:
            connection.close()


def _parse(raw: bytes) -> Any:  # noqa: ANN401 (JSON)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw.decode("utf-8", "replace")


def _sentence(body: object) -> str:
    """The message of an error body, in any of the shapes that servers of the dialect use."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    return str(inner.get("message", inner)) if isinstance(inner, dict) else str(inner)[:500]
