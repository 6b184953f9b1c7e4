"""Serves staged parts of weights to receivers over TCP: one thread per connection, bytes by sendfile.

Used by publisher and receivers (as peers). The wire: the request is a length (4 bytes, big-endian) and JSON
`ChunkRequest`; the answer is a length and JSON `ChunkAnswer`, then the checksums of all chunks of the part, then the
bytes that were asked for. Many requests per connection.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import select
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rljob_api.base import WireModel
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import Stream

MAX_REQUEST_BYTES = 4096
IDLE_SECONDS = 60.0
"""A receiver that neither asks nor reads for so long is gone."""
_LENGTH = struct.Struct(">I")


class ChunkRequest(WireModel):
    """Chunks [first, first + count) of a part of a weight."""

    token: str
    stream: Stream
    id: WeightId
    part: int
    first: int
    count: int


class ChunkAnswer(WireModel):
    """What follows: the checksums and so many bytes, or nothing and a refusal."""

    num_bytes: int
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class ServedPart:
    """A whole part; the descriptor is the server's to close."""

    descriptor: int
    num_bytes: int
    chunk_bytes: int
    checksums: bytes
    """Of all chunks, one after the other."""


@dataclass(frozen=True, slots=True)
class _Served:
    id: WeightId
    parts: Mapping[int, ServedPart]


class ChunkServer:
    """Serves the parts at hand of the newest weight of each stream, in background threads."""

    def __init__(self, host: str, token: str) -> None:
        self._token = token.encode()
        self._lock = threading.Lock()
        self._weights: dict[Stream, _Served] = {}
        self._listener = socket.create_server((host, 0), family=_family_of(host), backlog=128)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="weight-server", daemon=True).start()

    def serve(self, stream: Stream, weight: WeightId, parts: Mapping[int, ServedPart]) -> None:
        """Offers parts of a weight, by index, and forgets the weight before it; transfers in progress go on."""
        with self._lock:
            before = self._weights.get(stream)
            self._weights[stream] = _Served(weight, parts)
        _close(before)

    def close(self) -> None:
        """Stops listening and forgets all weights."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            weights, self._weights = list(self._weights.values()), {}
        for weight in weights:
            _close(weight)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._converse, args=(connection,), name="weight-stream", daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        """Answers requests until the receiver is done or gone; whatever it did concerns no one else."""
        with connection, contextlib.suppress(OSError, ValueError, EOFError):
            connection.settimeout(IDLE_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                self._answer(connection, ChunkRequest.model_validate_json(receive_message(connection)))

    def _answer(self, connection: socket.socket, request: ChunkRequest) -> None:
        if not hmac.compare_digest(request.token.encode(), self._token):
            send_message(connection, ChunkAnswer(num_bytes=0, refusal="wrong token"))
            raise EOFError("wrong token")
        part = self._take(request)
        if part is None:
            refusal = f"part {request.part} of {request.id} is not served here any more"
            send_message(connection, ChunkAnswer(num_bytes=0, refusal=refusal))
            return
        try:
            start = request.first * part.chunk_bytes
            end = min(part.num_bytes, start + request.count * part.chunk_bytes)
            send_message(connection, ChunkAnswer(num_bytes=max(0, end - start)))
            connection.sendall(part.checksums)
            _send_range(connection, part.descriptor, start, end)
        finally:
            os.close(part.descriptor)

    def _take(self, request: ChunkRequest) -> ServedPart | None:
        """The asked part behind a descriptor of its own, so that a newer weight may replace it meanwhile."""
        with self._lock:
            weight = self._weights.get(request.stream)
            part = None if weight is None or weight.id != request.id else weight.parts.get(request.part)
            return None if part is None else replace(part, descriptor=os.dup(part.descriptor))


def _close(weight: _Served | None) -> None:
    for part in () if weight is None else weight.parts.values():
        os.close(part.descriptor)


def _family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def send_message(connection: socket.socket, message: WireModel) -> None:
    """A length and JSON."""
    body = message.model_dump_json().encode()
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive_message(connection: socket.socket) -> bytes:
    """The JSON of one message; EOFError at the end, ValueError for one that is too long."""
    (length,) = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size))
    if length > MAX_REQUEST_BYTES:
        raise ValueError(f"a message of {length} bytes is longer than {MAX_REQUEST_BYTES}")
    return receive_exactly(connection, length)


def receive_exactly(connection: socket.socket, length: int) -> bytes:
    """So many bytes; EOFError where the connection ends before."""
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise EOFError("the connection was closed")
        data += piece
    return bytes(data)


def _send_range(connection: socket.socket, descriptor: int, start: int, end: int) -> None:
    """Sends bytes [start, end) of a file; socket.sendfile would need a file object with its own position."""
    while start < end:
        try:
            start += os.sendfile(connection.fileno(), descriptor, start, end - start)
        except BlockingIOError:
            _await_writable(connection)


def _await_writable(connection: socket.socket) -> None:
    if not select.select([], [connection], [], IDLE_SECONDS)[1]:
        raise TimeoutError("the receiver does not read")
