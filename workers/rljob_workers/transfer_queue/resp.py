"""One connection to a Redis server: its address, and the RESP protocol with scatter-gather writes and reads into place.

For `units` and `control.connection`. redis-py packs large values by copying them twice; this connection copies none.
Never retries and never reconnects: its owner closes it after any error.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from rljob_workers.sockets import keep_alive

Clock = Callable[[], float]


Sleep = Callable[[float], None]


RETRY_SECONDS = 0.02
"""Between two attempts to connect, for the owners of connections: a server is back in less than a second."""


_SAME_HOST_SEND_BUFFER_BYTES = 1 << 18
"""Where the server is on this host. What is sent then stays in the processor's cache until it is received: half as fast
again as the megabytes that the kernel would let pile up. A network needs those."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A Unix socket's path, or host and port; and the password (never shown)."""

    path: str | None
    host: str
    port: int
    password: str | None = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """`unix://:password@/path/unit.sock` or `redis://:password@host:port/0`."""
        parts = urlsplit(url)
        password = unquote(parts.password) if parts.password else None
        if parts.scheme == "unix" and parts.path:
            return cls(unquote(parts.path), "", 0, password)
        if parts.scheme == "redis" and parts.hostname and parts.path in ("", "/", "/0"):
            return cls(None, parts.hostname, parts.port or 6379, password)
        raise ValueError(
            f"TransferQueue: a Redis server's URL has scheme {parts.scheme!r} and no usable address."
            " Use unix://:password@/path or redis://:password@host:port/0."
        )

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    def connect(self, seconds: float) -> socket.socket:
        """A socket that never blocks, made within `seconds`; raises OSError."""
        if self.path is None:
            connection = socket.create_connection((self.host, self.port), timeout=seconds)
        else:
            connection = socket.socket(socket.AF_UNIX)
        try:
            if self.path is None:
                keep_alive(connection)
            else:
                connection.settimeout(seconds)
                connection.connect(self.path)
            if _is_on_this_host(connection):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SAME_HOST_SEND_BUFFER_BYTES)
            connection.setblocking(False)
        except BaseException:
            connection.close()
            raise
        return connection


def _is_on_this_host(connection: socket.socket) -> bool:
    if connection.family == socket.AF_UNIX:
        return True
    return bool(connection.getpeername()[0] == connection.getsockname()[0])


_IOV_MAX = 1024
"""Linux takes at most so many buffers in one sendmsg."""


_INLINE_BYTES = 4096
"""Smaller values are copied into one buffer with their neighbours: cheaper than a buffer each."""


_READ_AHEAD_BYTES = 1 << 16


_WAKE_BYTES = 1 << 19
"""Of a large value, the least that is worth waking up for: a tenth faster than with every few packets."""


_MAX_BULK_BYTES = 512 << 20
"""The server's own limit; a longer one is no RESP."""


_MAX_DEPTH = 8
"""Of lists in lists: nothing of ours has more than two."""


Reply = bytes | int | None | list["Reply"]


class ErrorReply(Exception):
    """The server's own error; the connection stays usable."""


class BrokenReply(Exception):
    """Not RESP, or the stream ended: the connection is of no more use."""


class RespConnection:
    """One connection: queue commands, then read one reply per command, in order.

    connection.command(b"SET", key, payload)
    connection.read(deadline)                    sends what is queued first
    """

    def __init__(
        self,
        address: ServerAddress,
        *,
        deadline: float,
        silence_seconds: float,
        clock: Clock = time.monotonic,
    ) -> None:
        """Connects and authenticates; raises OSError or ErrorReply (wrong password).

        This and all that follows raises TimeoutError at the deadline, or when the server takes and gives no byte for
        `silence_seconds`.
        """
        self._clock = clock
        self._silence_seconds = silence_seconds
        self._parts: list[bytes | memoryview] = []
        self._small = bytearray()
        self._buffer = bytearray(_READ_AHEAD_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._bulk_left = 0
        """Bytes of the begun bulk reply that `read_into` has not taken yet."""
        self._socket = address.connect(self._seconds_left(deadline))
        self._wakes_at = 1
        self._poll_in = select.poll()
        self._poll_in.register(self._socket, select.POLLIN)
        self._poll_out = select.poll()
        self._poll_out.register(self._socket, select.POLLOUT)
        try:
            if address.password is not None:
                self.call(b"AUTH", address.password.encode(), deadline=deadline)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """May be called twice."""
        self._socket.close()

    def command(self, *parts: bytes | memoryview, last: tuple[bytes | memoryview, ...] = ()) -> None:
        """Queues one command; `last` is one more argument, gathered from several buffers."""
        self._small += b"*%d\r\n" % (len(parts) + bool(last))
        for part in parts:
            self._argument((part,))
        if last:
            self._argument(last)

    def _argument(self, buffers: tuple[bytes | memoryview, ...]) -> None:
        self._small += b"$%d\r\n" % sum(map(len, buffers))
        for buffer in buffers:
            if len(buffer) < _INLINE_BYTES:
                self._small += buffer
                continue
            self._parts.append(bytes(self._small))
            self._small.clear()
            self._parts.append(buffer)
        self._small += b"\r\n"

    def _flush(self, deadline: float) -> None:
        """Sends everything queued: a command ends with small bytes."""
        self._parts.append(bytes(self._small))
        self._small.clear()
        parts, self._parts = self._parts, []
        first = 0
        while first < len(parts):
            sent = self._send(parts[first : first + _IOV_MAX], deadline)
            while first < len(parts) and sent >= len(parts[first]):
                sent -= len(parts[first])
                first += 1
            if sent:
                parts[first] = memoryview(parts[first])[sent:]

    def _send(self, buffers: list[bytes | memoryview], deadline: float) -> int:
        while True:
            try:
                return self._socket.sendmsg(buffers)
            except BlockingIOError:
                self._await(self._poll_out, deadline)

    def call(self, *parts: bytes | memoryview, deadline: float) -> Reply:
        """One command and its reply."""
        self.command(*parts)
        try:
            self._flush(deadline)
        except BrokenPipeError:
            # A server that takes no more clients sends an error, and closes.
            self.read(deadline)
            raise
        return self.read(deadline)

    def has_reply(self, seconds: float) -> bool:
        """Whether some of a reply is there, or comes within `seconds`; also when the stream has ended."""
        self._wake_at(1)
        return self._end > self._start or bool(self._poll_in.poll(seconds * 1000))

    def read(self, deadline: float) -> Reply:
        """The next reply, whatever it is; raises ErrorReply for an error."""
        if self._small:
            self._flush(deadline)
        return self._read(deadline, _MAX_DEPTH)

    def _read(self, deadline: float, depth: int) -> Reply:
        line = self._line(deadline)
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise ErrorReply(rest.decode(errors="replace"))
        if kind not in b":$*" or not kind:
            raise BrokenReply(f"a reply begins with {line[:16]!r}")
        if kind == b":":
            return _number(rest)
        size = _size(rest)
        if size < 0:
            return None
        if kind == b"$":
            return self._body(size, deadline)
        if not depth:
            raise BrokenReply("a reply has lists in lists in lists")
        try:
            return [self._read(deadline, depth - 1) for _ in range(size)]
        except ErrorReply as error:
            # The rest of the list is not read yet.
            raise BrokenReply(f"a list has an error in it: {error}") from error

    def _body(self, size: int, deadline: float) -> bytes:
        """Takes memory for bytes that arrived, not for the size that the server announces."""
        body = bytearray(min(size, _READ_AHEAD_BYTES))
        self._take(memoryview(body), deadline)
        while len(body) < size:
            part = bytearray(min(size - len(body), len(body)))
            self._take(memoryview(part), deadline)
            body += part
        self._end_bulk(deadline)
        return bytes(body)

    def begin_bulk(self, deadline: float, head_bytes: int = 0) -> tuple[int, bytes] | None:
        """Size of the bulk reply that comes next and its first `head_bytes` bytes (all of them where it is shorter).

        None: no such key. Then `read_into` takes the others. A head is a few bytes: it goes through the read-ahead.
        """
        if self._small:
            self._flush(deadline)
        line = self._line(deadline)
        if line[:1] == b"-":
            raise ErrorReply(line[1:].decode(errors="replace"))
        if line[:1] != b"$":
            raise BrokenReply(f"a bulk reply begins with {line[:16]!r}")
        size = _size(line[1:])
        if size < 0:
            return None
        wanted = min(size, head_bytes)
        while self._end - self._start < wanted:
            self._fill(deadline)
        head = bytes(self._view[self._start : self._start + wanted])
        self._start += wanted
        self._bulk_left = size - wanted
        if not self._bulk_left:
            self._end_bulk(deadline)
        return size, head

    def read_into(self, target: memoryview, deadline: float) -> None:
        """Fills `target` (bytes) from the bulk reply that was begun, and takes its line end behind the last byte."""
        self._take(target, deadline)
        self._bulk_left -= target.nbytes
        if not self._bulk_left:
            self._end_bulk(deadline)

    def _take(self, target: memoryview, deadline: float) -> None:
        size = target.nbytes
        filled = min(size, self._end - self._start)
        target[:filled] = self._view[self._start : self._start + filled]
        self._start += filled
        while filled < size:
            filled += self._receive(target[filled:], deadline)

    def _end_bulk(self, deadline: float) -> None:
        while self._end - self._start < 2:
            self._fill(deadline)
        if self._buffer[self._start : self._start + 2] != b"\r\n":
            raise BrokenReply("a bulk reply does not end with its line")
        self._start += 2

    def _line(self, deadline: float) -> bytes:
        while (end := self._buffer.find(b"\r\n", self._start, self._end)) < 0:
            if self._end - self._start == len(self._buffer):
                raise BrokenReply("a reply's first line has no end")
            self._fill(deadline)
        line = bytes(self._view[self._start : end])
        self._start = end + 2
        return line

    def _fill(self, deadline: float) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            rest = bytes(self._view[self._start : self._end])
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        self._end += self._receive(self._view[self._end :], deadline)

    def _receive(self, target: memoryview, deadline: float) -> int:
        while True:
            try:
                count = self._socket.recv_into(target)
            except BlockingIOError:
                self._await_bytes(target.nbytes, deadline)
                continue
            if not count:
                raise BrokenReply("the server closed the connection")
            return count

    def _await_bytes(self, wanted: int, deadline: float) -> None:
        self._wake_at(min(wanted, _WAKE_BYTES) if wanted > _READ_AHEAD_BYTES else 1)
        try:
            self._await(self._poll_in, deadline)
        except TimeoutError:
            self._wake_at(1)
            if not self._poll_in.poll(0):  # a slow server is not a silent one
                raise

    def _wake_at(self, num_bytes: int) -> None:
        """So many bytes, or the end of the stream, end a wait from now on. Unix sockets wake with every byte."""
        if num_bytes != self._wakes_at:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)
            self._wakes_at = num_bytes

    def _await(self, poll: select.poll, deadline: float) -> None:
        if not poll.poll(self._seconds_left(deadline) * 1000):
            raise TimeoutError("no answer within the deadline")

    def _seconds_left(self, deadline: float) -> float:
        left = deadline - self._clock()
        if left <= 0:
            raise TimeoutError("no answer within the deadline")
        return min(left, self._silence_seconds)


def _size(text: bytes) -> int:
    size = _number(text)
    if size > _MAX_BULK_BYTES:
        raise BrokenReply(f"a reply claims {size} bytes or elements")
    return size


def _number(text: bytes) -> int:
    try:
        return int(text[:24])
    except ValueError:
        raise BrokenReply(f"a reply has {text[:16]!r} where a number belongs") from None
