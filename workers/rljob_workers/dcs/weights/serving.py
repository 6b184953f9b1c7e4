"""Serves staged weights to receivers over TCP: one thread per connection, bytes by sendfile.

Used by publisher and receivers (as peers). The wire: the request is a length (4 bytes, big-endian) and JSON
`ChunkRequest`; the answer is a length and JSON `ChunkAnswer`, then the bytes. Many requests per connection.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import select
import socket
import struct
import threading
from dataclasses import dataclass

from rljob_api.base import WireModel
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import Stream

MAX_REQUEST_BYTES = 4096
IDLE_SECONDS = 60.0
"""A receiver that neither asks nor reads for so long is gone."""
_LENGTH = struct.Struct(">I")


class ChunkRequest(WireModel):
    """Chunks [first, first + count) of a weight."""

    token: str
    stream: Stream
    id: WeightId
    first: int
    count: int


class ChunkAnswer(WireModel):
    """What follows: so many bytes, or a refusal."""

    num_bytes: int
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class ServedWeight:
    """A whole weight; the descriptor is the server's to close."""

    stream: Stream
    id: WeightId
    descriptor: int
    num_bytes: int
    chunk_bytes: int


class ChunkServer:
    """Serves the newest weight of each stream in background threads."""

    def __init__(self, host: str, token: str) -> None:
        self._token = token.encode()
        self._lock = threading.Lock()
        self._weights: dict[Stream, ServedWeight] = {}
        self._listener = socket.create_server((host, 0), family=_family_of(host), backlog=128)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="weight-server", daemon=True).start()

    def serve(self, weight: ServedWeight) -> None:
        """Offers a weight and forgets the one before it; transfers in progress go on."""
        with self._lock:
            before = self._weights.get(weight.stream)
            self._weights[weight.stream] = weight
        if before is not None:
            os.close(before.descriptor)

    def close(self) -> None:
        """Stops listening and forgets all weights."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            weights, self._weights = list(self._weights.values()), {}
        for weight in weights:
            os.close(weight.descriptor)

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
        weight = self._take(request)
        if weight is None:
            send_message(connection, ChunkAnswer(num_bytes=0, refusal=f"{request.id} is not served here any more"))
            return
        try:
            start = request.first * weight.chunk_bytes
            end = min(weight.num_bytes, start + request.count * weight.chunk_bytes)
            send_message(connection, ChunkAnswer(num_bytes=max(0, end - start)))
            _send_range(connection, weight.descriptor, start, end)
        finally:
            os.close(weight.descriptor)

    def _take(self, request: ChunkRequest) -> ServedWeight | None:
        """The asked weight behind a descriptor of its own, so that a newer one may replace it meanwhile."""
        with self._lock:
            weight = self._weights.get(request.stream)
            if weight is None or weight.id != request.id:
                return None
            descriptor = os.dup(weight.descriptor)
        return ServedWeight(weight.stream, weight.id, descriptor, weight.num_bytes, weight.chunk_bytes)


def _family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def send_message(connection: socket.socket, message: WireModel) -> None:
    """A length and JSON."""
    body = message.model_dump_json().encode()
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive_message(connection: socket.socket) -> bytes:
    """The JSON of one message; EOFError at the end, ValueError for one that is too long."""
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    if length > MAX_REQUEST_BYTES:
        raise ValueError(f"a message of {length} bytes is longer than {MAX_REQUEST_BYTES}")
    return _receive(connection, length)


def _receive(connection: socket.socket, length: int) -> bytes:
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
