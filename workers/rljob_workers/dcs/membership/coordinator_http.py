"""HTTP requests to the coordinator: a keep-alive connection for select loops, and typed blocking requests.

For session, launcher, weights, checkpoints and tests. The client repeats a request without an answer until its
deadline, which is safe since every request is idempotent. Starts no threads; knows no route.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from rljob_api.base import ApiModel
from rljob_api.wire.identity import Endpoints, Refusal
from rljob_workers.dcs.errors import (
    CoordinatorRefused,
    CoordinatorUnreachable,
    DcsError,
    IncarnationOver,
    WeightDead,
    WeightIncomplete,
)
from rljob_workers.sockets import is_readable, keep_alive

CONNECT_SECONDS = 2.0
"""The coordinator's socket listens even while the coordinator is being restarted: connecting is quick or hopeless."""


_END_OF_HEAD = b"\r\n\r\n"


Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete HTTP answer."""

    status: int
    body: bytes


class ChannelBroken(Exception):
    """The connection ended, or no answer came in time; the request may or may not have been carried out."""


class PendingAnswer:
    """A request on its way. Wait for `fileno()` to become readable (with a timeout), then ask `ready()`."""

    def __init__(self, connection: socket.socket, expires: float, clock: Clock) -> None:
        self._connection = connection
        self._expires = expires
        self._clock = clock
        self._received = bytearray()
        self._answer: Answer | None = None
        self._broken: str | None = None

    def fileno(self) -> int:
        """Readable when there is something to collect; -1 once the connection is closed."""
        return self._connection.fileno()

    def ready(self) -> bool:
        """Whether `result()` returns (or raises) without waiting. Never blocks."""
        if self._answer is None and self._broken is None:
            self._collect()
        if self._answer is None and self._broken is None and self._clock() >= self._expires:
            self._broken = "no answer in time"
        return self._answer is not None or self._broken is not None

    def result(self) -> Answer:
        """The answer; waits for it. Raises ChannelBroken."""
        while not self.ready():
            left = max(0.0, self._expires - self._clock())
            is_readable(self._connection, left)
        if self._answer is None:
            raise ChannelBroken(self._broken)
        return self._answer

    def _collect(self) -> None:
        try:
            data = self._connection.recv(1 << 16)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broken = str(error)
            return
        if not data:
            self._broken = "the connection was closed"
            return
        self._received += data
        self._answer = _parse(self._received)


def _parse(received: bytearray) -> Answer | None:
    """The answer, or None while bytes are missing."""
    head_end = received.find(_END_OF_HEAD)
    if head_end < 0:
        return None
    lines = bytes(received[:head_end]).split(b"\r\n")
    length = 0
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
    body = bytes(received[head_end + len(_END_OF_HEAD) :])
    return Answer(int(lines[0].split()[1]), body) if len(body) >= length else None


class HttpChannel:
    """A connection that is made when first needed and made again when it broke. One request at a time."""

    def __init__(self, base_url: str, token: str, clock: Clock = time.monotonic) -> None:
        parts = urlsplit(base_url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise ValueError(
                f"coordinator: {base_url!r} is not of the form http://host:port. Set it so in the endpoints."
            )
        self._address = (parts.hostname, parts.port)
        self._token = token
        self._clock = clock
        self._connection: socket.socket | None = None
        self._known: tuple[str, int] | None = None
        self.pending: PendingAnswer | None = None
        """The request in flight: no answer of it was collected yet."""

    def begin(self, method: str, path: str, body: bytes | None, *, timeout: float) -> PendingAnswer:
        """Sends a request. Raises ChannelBroken when no connection can be made."""
        if self.pending is not None and not (self.pending.ready() and self.pending._answer is not None):
            self.close()  # an answer that was not collected would be taken for the next one's
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._address[0]}\r\nX-RLJob-Token: {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body or b'')}\r\n\r\n"
        )
        message = head.encode() + (body or b"")
        connection = self._send(message)
        self.pending = PendingAnswer(connection, self._clock() + timeout, self._clock)
        return self.pending

    def collect(self) -> Answer | None:
        """The answer of the request in flight, once; None while it is on its way. Never waits. Raises ChannelBroken."""
        if self.pending is None or not self.pending.ready():
            return None
        pending, self.pending = self.pending, None
        try:
            return pending.result()
        except ChannelBroken:
            self.close()
            raise

    def watch(self, poller: select.poll) -> None:
        """Registers the connection while an answer is awaited."""
        if self.pending is not None and self.pending.fileno() >= 0:
            poller.register(self.pending.fileno(), select.POLLIN)

    def request(self, method: str, path: str, body: bytes | None, *, timeout: float) -> Answer:
        """Sends a request and waits for its answer. Raises ChannelBroken."""
        try:
            answer = self.begin(method, path, body, timeout=timeout).result()
        except ChannelBroken:
            self.close()
            raise
        self.pending = None
        return answer

    def close(self) -> None:
        """Closes the connection; the next request makes a new one."""
        self.pending = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, message: bytes) -> socket.socket:
        if self._connection is not None and _is_quiet(self._connection):
            with contextlib.suppress(OSError):
                return _send_all(self._connection, message)
        self.close()
        try:
            self._connection = self._connect()
            keep_alive(self._connection)
            return _send_all(self._connection, message)
        except OSError as error:
            self.close()
            raise ChannelBroken(f"cannot connect: {error}") from error

    def _connect(self) -> socket.socket:
        """The address that answered last is tried first: names need not resolve while a job runs."""
        known, self._known = self._known, None
        connection = socket.create_connection(known or self._address, CONNECT_SECONDS)
        self._known = connection.getpeername()[:2]
        return connection


def _is_quiet(connection: socket.socket) -> bool:
    """False if the server has closed an idle connection: the next request would be lost on it."""
    return not is_readable(connection)


def _send_all(connection: socket.socket, message: bytes) -> socket.socket:
    connection.settimeout(CONNECT_SECONDS)
    connection.sendall(message)
    connection.setblocking(False)
    return connection


ATTEMPT_SECONDS = 5.0
"""How long one attempt may stay without answer, beyond the wait that it asked for."""


PAUSE_SECONDS = 0.1
"""Between attempts: a restarted coordinator waits for its launchers' reports, so they must come back soon."""


_REFUSALS: dict[str, type[DcsError]] = {
    "Fenced": IncarnationOver,
    "WrongEpoch": IncarnationOver,
    "Dead": WeightDead,
    "Incomplete": WeightIncomplete,
}


A = TypeVar("A", bound=ApiModel)


class CoordinatorClient:
    """One connection to the coordinator, for one thread."""

    def __init__(
        self,
        endpoints: Endpoints,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = endpoints.coordinator
        self.channel = HttpChannel(endpoints.coordinator, endpoints.token, clock)
        self._clock = clock
        self._sleep = sleep

    def call(self, method: str, path: str, body: ApiModel | None, *, deadline: float, wait: float = 0.0) -> bytes:
        """The body of the answer; sent again until `deadline` (monotonic) while the coordinator is away or not open.

        `wait` is how long the coordinator was asked to hold the request (a long poll).
        """
        payload = None if body is None else body.model_dump_json().encode()
        failure = "no attempt was made"
        begun = self._clock()
        while True:
            try:
                answer = self.channel.request(method, path, payload, timeout=wait + ATTEMPT_SECONDS)
                if answer.status < 500:
                    return accept(answer)
                failure = f"status {answer.status}: {answer.body[:200].decode(errors='replace')}"
            except ChannelBroken as error:
                failure = str(error)
            if self._clock() + PAUSE_SECONDS >= deadline:
                raise CoordinatorUnreachable(
                    f"{method} {path}: the coordinator at {self.url} has not answered for "
                    f"{self._clock() - begun:.1f} s ({failure})."
                )
            self._sleep(PAUSE_SECONDS)

    def ask(self, method: str, path: str, body: ApiModel | None, kind: type[A], *, deadline: float) -> A:
        """As `call`, with the answer parsed."""
        return kind.model_validate_json(self.call(method, path, body, deadline=deadline))

    def close(self) -> None:
        """Closes the connection; a later request makes a new one."""
        self.channel.close()


def accept(answer: Answer) -> bytes:
    """The body of a good answer; a refusal is raised as the error of its reason."""
    if answer.status < 400:
        return answer.body
    refusal = _refusal(answer)
    raise _REFUSALS.get(refusal.reason, CoordinatorRefused)(refusal.message)


def _refusal(answer: Answer) -> Refusal:
    try:
        return Refusal.model_validate_json(answer.body)
    except ValidationError:
        text = answer.body[:500].decode(errors="replace")
        return Refusal(reason="BadRequest", message=f"status {answer.status}: {text}")
