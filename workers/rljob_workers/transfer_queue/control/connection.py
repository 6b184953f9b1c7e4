"""A connection to the control Redis that knows which server it talks to.

For `client` and `admin`. The server's run id is learnt on every new connection and sent with every call: a connection
does not survive the server, so the id is true of the server that runs the function.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from rljob_workers.transfer_queue.address import ServerAddress
from rljob_workers.transfer_queue.control.library import Library
from rljob_workers.transfer_queue.errors import (
    ControlRefused,
    ControlUnreachable,
    DeadWeight,
    Fenced,
    Incomplete,
    Mismatch,
    NotOpen,
    QueueError,
    Replaced,
    WrongEpoch,
)
from rljob_workers.transfer_queue.resp import BrokenReply, ErrorReply, RespConnection
from rljob_workers.transfer_queue.timing import QueueTiming

RETRY_SECONDS = 0.02

Clock = Callable[[], float]
Sleep = Callable[[float], None]
Argument = bytes | str | int | float


class StaleUnit(QueueError):
    """A storage unit came back empty between the bytes and their commit: store them again. Inside the queue only."""


class BytesSwept(QueueError):
    """Bytes waited for their commit for so long that they were swept: store them again. Inside the adapter only."""


_REFUSALS: dict[str, type[QueueError]] = {
    "FENCED": Fenced,
    "STALECALL": Fenced,
    "REPLACED": Replaced,
    "WRONGEPOCH": WrongEpoch,
    "DEAD": DeadWeight,
    "INCOMPLETE": Incomplete,
    "MISMATCH": Mismatch,
    "STALEUNIT": StaleUnit,
    "SWEPT": BytesSwept,
}
_NOT_YET = ("LOADING", "BUSY")
"""Answers of a server that is not ready yet."""
_NOT_US = ("NOAUTH", "WRONGPASS")
_IS_CROWDED = "max number of clients reached"
_WHERE = re.compile(r" script: \S+, on \S+?\.$")


class ControlConnection:
    """Calls functions of one library, through restarts of the server, until a deadline."""

    def __init__(
        self,
        url: str,
        functions: Library,
        *,
        timing: QueueTiming = QueueTiming(),
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        """Connects when first used."""
        self._functions = functions
        self._silence_seconds = timing.control_silence_seconds
        self._clock = clock
        self._sleep = sleep
        self._run_id = b""
        self._address = ServerAddress.parse(url)
        self._connection: RespConnection | None = None

    def close(self) -> None:
        """May be called twice; the next call connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def run_id(self, *, deadline: float, waiting: str) -> str:
        """Run id of the server that answers now."""

        def ask(until: float) -> str:
            self.close()
            return self._known_run_id(until).decode()

        return str(self._persist(ask, deadline, waiting))

    def read(self, name: str, *args: Argument, deadline: float, waiting: str) -> Any:  # noqa: ANN401 - a reply of Redis
        """Calls a function that changes nothing."""
        return self._persist(lambda until: self._function(name, args, until), deadline, waiting)

    def change(self, name: str, *args: Argument, deadline: float, waiting: str) -> list[Any]:
        """Calls a function whose first argument is the run id; `args` come after it.

        Repeated as it is until there is an answer, so `args` must hold a call number. `waiting` says for an error who
        waits for what.
        """
        reply = self._persist(
            lambda until: self._function(name, (self._known_run_id(until), *args), until), deadline, waiting
        )
        assert isinstance(reply, list)
        return reply

    def _connected(self, until: float) -> RespConnection:
        if self._connection is None:
            connection = RespConnection(
                self._address, deadline=until, silence_seconds=self._silence_seconds, clock=self._clock
            )
            try:
                info = connection.call(b"INFO", b"server", deadline=until)
            except BaseException:
                connection.close()
                raise
            self._run_id = _run_id(info if isinstance(info, bytes) else b"")
            self._connection = connection
        return self._connection

    def _known_run_id(self, until: float) -> bytes:
        self._connected(until)
        return self._run_id

    def _function(self, name: str, args: tuple[Argument, ...], until: float) -> Any:  # noqa: ANN401
        connection = self._connected(until)
        packed = [value if isinstance(value, bytes) else str(value).encode() for value in args]
        call = (b"FCALL", (name + self._functions.suffix).encode(), b"0", *packed)
        try:
            return connection.call(*call, deadline=until)
        except ErrorReply as error:
            if "Function not found" not in str(error):
                raise
        connection.call(b"FUNCTION", b"LOAD", b"REPLACE", self._functions.text.encode(), deadline=until)
        return connection.call(*call, deadline=until)

    def _persist(self, attempt: Callable[[float], Any], deadline: float, waiting: str) -> Any:  # noqa: ANN401 - a reply
        began = self._clock()
        while True:
            try:
                # A first answer is always waited for: some deadlines are only how long may be tried again.
                return attempt(max(deadline, self._clock() + self._silence_seconds))
            except (OSError, BrokenReply) as error:
                self.close()
                trouble: QueueError = ControlUnreachable(self._unreachable(began, waiting, error))
                trouble.__cause__ = error
            except ErrorReply as error:
                trouble = self._refusal(error, began, waiting)
                if not isinstance(trouble, NotOpen | ControlUnreachable):
                    raise trouble from error
            except BaseException:
                # Its reply would be taken for that of the next call.
                self.close()
                raise
            if self._clock() + RETRY_SECONDS >= deadline:
                raise trouble
            self._sleep(RETRY_SECONDS)

    def _refusal(self, error: ErrorReply, began: float, waiting: str) -> QueueError:
        code, _, message = _WHERE.sub("", str(error)).partition(" ")
        if code in _NOT_YET:
            self.close()
            return ControlUnreachable(self._unreachable(began, waiting, error))
        if code in _NOT_US or _IS_CROWDED in message:
            self.close()
            return ControlRefused(self._unreachable(began, waiting, error))
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


def _run_id(info: bytes) -> bytes:
    found = re.search(rb"run_id:(\w+)", info)
    if found is None:
        raise BrokenReply("INFO names no run id")
    return found.group(1)
