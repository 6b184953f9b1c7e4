"""JSON over kept-alive HTTP connections, in an event loop.

Used by the client only. A connection that breaks becomes EngineGone; a refusal is the caller's to judge, once it knows
whose it is. Time belongs to the caller: cancelling a request closes its connection, by which the server knows.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from rljob_workers.engines.errors import EngineGone
from rljob_workers.engines.torch_engine.names import INCARNATION_HEADER

_HTTP_OK = 200
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a reply."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, whatever its status."""

    body: Any
    """Parsed JSON, or the text where it is none."""
    incarnation: str | None
    """None: the server does not say."""
    refusal: str | None
    """The server's sentence where the status is not 200."""


@dataclass(frozen=True, slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def is_stale(self) -> bool:
        """Between two requests nothing may come: what is readable is the server's end of the connection."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        return self.reader.at_eof() or self.writer.is_closing() or bool(select.select([raw], [], [], 0)[0])

    def close(self) -> None:
        self.writer.close()


class Transport:
    """A pool of connections to one server; a request takes an idle one or opens another."""

    def __init__(self, url: str) -> None:
        """`url`: http://host:port. Nothing is opened yet."""
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise ValueError(f"engine_url: {url!r} is not of the form http://host:port.")
        self.url = url
        self._address = (parts.hostname, parts.port)
        self._idle: list[_Connection] = []

    async def request(
        self, method: str, path: str, body: object | None, *, on_line: Callable[[bytes], None] = lambda _: None
    ) -> Reply:
        """Sends one request and reads its reply. A failed one is never sent again: the server may be working on it.

        `on_line` gets all but the last line of a reply that comes in lines of JSON, each as it comes.
        """
        what = f"{method} {path} of the engine at {self.url}"
        async with self._exchange(what) as connection:
            await self._send(connection, method, path, body)
            head = await _read_head(connection.reader)
            if "content-length" in head.headers:
                raw = await connection.reader.readexactly(int(head.headers["content-length"]))
            else:
                raw = await _read_lines(connection.reader, on_line)
        parsed = _parse(raw)
        refusal = None
        if head.status != _HTTP_OK:
            refusal = f"{what} was refused with {head.status}: {_sentence(parsed)}"
        return Reply(parsed, head.headers.get(INCARNATION_HEADER), refusal)

    def close(self) -> None:
        """Closes idle connections."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @asynccontextmanager
    async def _exchange(self, what: str) -> AsyncIterator[_Connection]:
        """A connection for one request and its reply; kept if both came through."""
        connection: _Connection | None = None
        try:
            connection = await self._take()
            yield connection
        except (OSError, EOFError, ValueError, KeyError) as error:
            if connection is not None:
                connection.close()
            raise EngineGone(
                f"{what} broke off ({type(error).__name__}: {error}); the server died or was replaced."
            ) from error
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        self._idle.append(connection)

    async def _take(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_stale():
                return connection
            connection.close()
        reader, writer = await asyncio.open_connection(*self._address, limit=_READ_BYTES)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _Connection(reader, writer)

    async def _send(self, connection: _Connection, method: str, path: str, body: object | None) -> None:
        payload = b"" if body is None else orjson.dumps(body)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._address[0]}:{self._address[1]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        connection.writer.write(head.encode("ascii") + payload)
        await connection.writer.drain()


async def _read_head(reader: asyncio.StreamReader) -> Head:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, status, *_ = lines[0].split(" ")
    if not version.startswith("HTTP/"):
        raise ValueError(f"{lines[0]!r} is no status line")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return Head(int(status), {name.strip().lower(): value.strip() for name, _, value in pairs})


async def _read_lines(reader: asyncio.StreamReader, on_line: Callable[[bytes], None]) -> bytes:
    """The last line of a body in chunks; the others go to `on_line`."""
    rest = bytearray()
    while chunk := await _read_chunk(reader):
        rest += chunk
        *lines, _ = rest[:-1].split(b"\n")  # the last line stays, whole or not, since none may follow
        for line in lines:
            on_line(bytes(line))
            del rest[: len(line) + 1]
    return bytes(rest)


async def _read_chunk(reader: asyncio.StreamReader) -> bytes:
    """One chunk of a body, empty at its end."""
    size = int((await reader.readuntil(b"\r\n")).strip(), 16)
    return (await reader.readexactly(size + 2))[:-2]


def _parse(raw: bytes) -> Any:  # noqa: ANN401 (JSON)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw.decode("utf-8", "replace")


def _sentence(body: object) -> str:
    """The message of an error body, in either of the shapes that the server uses."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    return str(inner.get("message", inner)) if isinstance(inner, dict) else str(inner)[:500]
