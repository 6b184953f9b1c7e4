"""A connection to the control Redis that knows which server it talks to.

For `client` and `steward`. The server's run id is learnt on every new connection and sent with every call: a connection
does not survive the server, so the id is true of the server that runs the function.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.connection import Connection, UnixDomainSocketConnection

from rljob_workers.keepalive import redis_options
from rljob_workers.transfer_queue.control.library import Library
from rljob_workers.transfer_queue.errors import (
    ControlUnreachable,
    DeadWeight,
    Fenced,
    Incomplete,
    Mismatch,
    NotOpen,
    QueueError,
    WrongEpoch,
)

SOCKET_SECONDS = 5.0
"""A server that is silent for so long is taken for gone: every function of ours ends within milliseconds."""
RETRY_SECONDS = 0.02

Clock = Callable[[], float]
Sleep = Callable[[float], None]
Argument = bytes | str | int | float


class StaleUnit(QueueError):
    """A storage unit came back empty between the bytes and their commit: store them again. Inside the queue only."""


_REFUSALS: dict[str, type[QueueError]] = {
    "FENCED": Fenced,
    "STALECALL": Fenced,
    "WRONGEPOCH": WrongEpoch,
    "DEAD": DeadWeight,
    "INCOMPLETE": Incomplete,
    "MISMATCH": Mismatch,
    "STALEUNIT": StaleUnit,
}
_WHERE = re.compile(r" script: \S+, on \S+?\.$")


def open_connection(url: str, on_connect: Callable[[Any], None] | None = None) -> Any:  # noqa: ANN401 - untyped there
    """A redis-py connection to `redis://:password@host:port/0` or `unix://:password@/path`; not connected yet."""
    parts = urlsplit(url)
    password = unquote(parts.password) if parts.password else None
    common: dict[str, Any] = {
        "password": password,
        "protocol": 2,  # in RESP3 a notice is a push: read_response handles it inside and goes on waiting for an answer
        "socket_timeout": SOCKET_SECONDS,
        "redis_connect_func": on_connect,
        "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
    }
    if parts.scheme == "unix":
        unix: Any = UnixDomainSocketConnection
        return unix(path=unquote(parts.path), **common)
    if parts.scheme == "redis" and parts.hostname:
        tcp: Any = Connection
        return tcp(
            host=parts.hostname,
            port=parts.port or 6379,
            socket_connect_timeout=SOCKET_SECONDS,
            **redis_options(url),
            **common,
        )
    raise ValueError(
        f"controlRedis: the URL has scheme {parts.scheme!r} and no usable address."
        " Use unix://:password@/path or redis://:password@host:port/0."
    )


class ControlConnection:
    """Calls functions of one library, through restarts of the server, until a deadline."""

    def __init__(
        self, url: str, functions: Library, *, clock: Clock = time.monotonic, sleep: Sleep = time.sleep
    ) -> None:
        """Connects when first used."""
        self._functions = functions
        self._clock = clock
        self._sleep = sleep
        self._run_id = ""
        parts = urlsplit(url)
        self._address = unquote(parts.path) if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
        self._connection = open_connection(url, self._greet)

    def close(self) -> None:
        """May be called twice; the next call connects again."""
        self._connection.disconnect()

    def run_id(self, *, deadline: float, waiting: str) -> str:
        """Run id of the server that answers now."""
        return str(self._persist(self._read_run_id, deadline, waiting))

    def read(self, name: str, *args: Argument, deadline: float, waiting: str) -> Any:  # noqa: ANN401 - a reply of Redis
        """Calls a function that changes nothing."""
        return self._persist(lambda: self._function(name, args), deadline, waiting)

    def change(self, name: str, *args: Argument, deadline: float, waiting: str) -> list[Any]:
        """Calls a function whose first argument is the run id; `args` come after it.

        Repeated as it is until there is an answer, so `args` must hold a call number. `waiting` says for an error who
        waits for what.
        """
        reply = self._persist(lambda: self._function(name, (self._known_run_id(), *args)), deadline, waiting)
        assert isinstance(reply, list)
        return reply

    def _greet(self, connection: Any) -> None:  # noqa: ANN401 - redis-py does not type this hook
        connection.on_connect()
        connection.send_command("INFO", "server")
        text = connection.read_response()
        self._run_id = _run_id(text if isinstance(text, bytes) else str(text).encode())

    def _known_run_id(self) -> str:
        self._connection.connect()
        return self._run_id

    def _read_run_id(self) -> str:
        self._connection.disconnect()
        return self._known_run_id()

    def _function(self, name: str, args: tuple[Argument, ...]) -> Any:  # noqa: ANN401 - a reply of Redis
        self._connection.connect()
        try:
            self._connection.send_command("FCALL", name + self._functions.suffix, 0, *args)
            return self._connection.read_response()
        except redis.ResponseError as error:
            if "Function not found" not in str(error):
                raise
        self._connection.send_command("FUNCTION", "LOAD", "REPLACE", self._functions.text)
        self._connection.read_response()
        self._connection.send_command("FCALL", name + self._functions.suffix, 0, *args)
        return self._connection.read_response()

    def _persist(self, attempt: Callable[[], Any], deadline: float, waiting: str) -> Any:  # noqa: ANN401 - passes it on
        began = self._clock()
        while True:
            try:
                return attempt()
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                self._connection.disconnect()
                trouble: QueueError = ControlUnreachable(self._unreachable(began, waiting, error))
                trouble.__cause__ = error
            except redis.ResponseError as error:
                trouble = self._refusal(error, began, waiting)
                if not isinstance(trouble, NotOpen):
                    raise trouble from error
            if self._clock() + RETRY_SECONDS >= deadline:
                raise trouble
            self._sleep(RETRY_SECONDS)

    def _refusal(self, error: redis.ResponseError, began: float, waiting: str) -> QueueError:
        code, _, message = _WHERE.sub("", str(error)).partition(" ")
        if code == "NOTOPEN":
            seconds = self._clock() - began
            return NotOpen(f"TransferQueue: {message} ({self._address}, for {seconds:.1f} s); {waiting}.")
        kind = _REFUSALS.get(code)
        if kind is not None:
            return kind(f"TransferQueue: {message}.")
        return QueueError(f"TransferQueue: the control Redis ({self._address}) failed: {error}; {waiting}.")

    def _unreachable(self, began: float, waiting: str, error: Exception) -> str:
        seconds = self._clock() - began
        return (
            f"TransferQueue: the control Redis ({self._address}) has not answered for {seconds:.1f} s ({error});"
            f" {waiting}. Check its process."
        )


def _run_id(info: bytes) -> str:
    found = re.search(rb"run_id:(\w+)", info)
    assert found is not None
    return found.group(1).decode()
