"""Calls on the control Redis: calls that survive its restarts, notices, and waits for an answer.

A call is repeated until it has an answer or its deadline passes. A wait asks, listens for a notice and asks again; a
lost notice costs one recheck and never a hang. For `client` and the coordinator's side; knows no function by name.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

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
from rljob_workers.transfer_queue.resp import (
    RETRY_SECONDS,
    BrokenReply,
    Clock,
    ErrorReply,
    RespConnection,
    ServerAddress,
    Sleep,
)
from rljob_workers.transfer_queue.types import QueueTiming

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

        Repeated as it is until there is an answer, so `args` must hold a call number. `waiting` names in an error who
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


POLL_SECONDS = 0.02


class Notices(ABC):
    """Channels that a client listens to, and the notices received on them."""

    @abstractmethod
    def listen(self, channel: str) -> bool:
        """From here on no notice on `channel` is missed; True if that was not so before, and is so now."""

    @abstractmethod
    def noticed(self, channel: str) -> bool:
        """Whether something may have changed since this was last asked: a notice came, or none could have come."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Returns at a notice on any channel, or when it is time to ask again, at the latest after `seconds`."""

    @abstractmethod
    def close(self) -> None:
        """May be called twice."""


class Polling(Notices):
    """Asks again and again."""

    def __init__(self, sleep: Sleep = time.sleep) -> None:
        self._sleep = sleep

    def listen(self, channel: str) -> bool:  # noqa: ARG002 - of no channel
        """Nothing can be listened to."""
        return False

    def noticed(self, channel: str) -> bool:  # noqa: ARG002 - of no channel
        """Always: no notice is received."""
        return True

    def wait(self, seconds: float) -> None:
        """Sleeps for a moment."""
        self._sleep(min(seconds, POLL_SECONDS))

    def close(self) -> None:
        """Nothing to do."""


class Subscription(Notices):
    """Redis pub/sub on one connection."""

    def __init__(
        self,
        url: str,
        *,
        timing: QueueTiming = QueueTiming(),
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        """Connects when first used."""
        self._address = ServerAddress.parse(url)
        self._silence_seconds = timing.control_silence_seconds
        self._clock = clock
        self._sleep = sleep
        self._connection: RespConnection | None = None
        self._channels: set[str] = set()
        self._noticed: set[str] = set()

    def listen(self, channel: str) -> bool:
        """Subscribes once. Without a connection it is not listening, and the queue itself is asked."""
        if channel in self._channels:
            return False
        try:
            self._subscribe(channel)
        except (OSError, BrokenReply, ErrorReply):
            # The queue itself is asked next, over its own connection, and names the trouble if it lasts.
            self.close()
            return False
        return True

    def noticed(self, channel: str) -> bool:
        """Reads what has come."""
        self._read_for(0.0)
        if channel not in self._channels:
            return True
        was_noticed = channel in self._noticed
        self._noticed.discard(channel)
        return was_noticed

    def wait(self, seconds: float) -> None:
        """Reads until one notice came. Without a connection it is a short sleep."""
        if self._connection is None:
            self._sleep(min(seconds, POLL_SECONDS))
        else:
            self._read_for(seconds)

    def close(self) -> None:
        """Ends the subscription."""
        connection, self._connection = self._connection, None
        self._channels.clear()
        self._noticed.clear()
        if connection is not None:
            connection.close()

    def _subscribe(self, channel: str) -> None:
        until = self._clock() + self._silence_seconds
        if self._connection is None:
            self._connection = RespConnection(
                self._address, deadline=until, silence_seconds=self._silence_seconds, clock=self._clock
            )
        self._connection.command(b"SUBSCRIBE", b"n:" + channel.encode())
        while channel not in self._channels:
            self._read_one()

    def _read_for(self, seconds: float) -> None:
        """All notices that are there, waiting up to `seconds` for the first."""
        try:
            while self._connection is not None and self._connection.has_reply(seconds):
                self._read_one()
                seconds = 0.0
        except (OSError, BrokenReply, ErrorReply):
            self.close()

    def _read_one(self) -> None:
        assert self._connection is not None
        reply = self._connection.read(self._clock() + self._silence_seconds)
        if not isinstance(reply, list) or len(reply) != 3 or not isinstance(reply[1], bytes):
            raise BrokenReply(f"a notice was expected, {reply!r} came")
        kind, channel = reply[0], reply[1].decode(errors="replace").removeprefix("n:")
        (self._channels if kind == b"subscribe" else self._noticed).add(channel)


RECHECK_SECONDS = 1.0
"""An answer that is not final stands for so long: leases end without a notice, and a notice may be lost."""


A = TypeVar("A")


class Wait(Generic[A]):
    """The waits of one client on one channel, one after another.

    for deadline in wait.turns(question, timeout):
        ...    return a final answer, or set `wait.answer`, or call `wait.failed`
    return wait.answer
    """

    answer: A
    """The last one that was not final."""

    def __init__(self, notices: Notices, channel: str, clock: Clock) -> None:
        self._notices = notices
        self._channel = channel
        self._clock = clock
        self._question: object = None
        self._stands_seconds = RECHECK_SECONDS
        self._stands_until = float("-inf")

    def turns(self, question: object, timeout: float) -> Iterator[float]:
        """Yields its deadline whenever the answer to `question` may have changed, until that deadline.

        `question` compares equal where the same is asked: while its answer stands, over several waits, it is not asked
        again.
        """
        deadline = self._clock() + timeout
        if self._notices.noticed(self._channel) or question != self._question:
            self._stands_until = float("-inf")
        self._question = question
        was_asked = False
        while True:
            while was_asked or self._clock() < self._stands_until:
                left = deadline - self._clock()
                if left <= 0:
                    return
                if self._notices.listen(self._channel):
                    break  # what came between the answer and this moment was missed
                self._notices.wait(max(0.0, min(left, self._stands_until - self._clock())))
                if self._notices.noticed(self._channel):
                    break
                was_asked = False
            self._stands_until, self._stands_seconds = float("-inf"), RECHECK_SECONDS
            yield deadline
            was_asked = True
            self._stands_until = self._clock() + self._stands_seconds

    def failed(self, answer: A) -> None:
        """Sets `answer` where the queue itself gave none: the next turn comes soon."""
        self.answer = answer
        self._stands_seconds = RETRY_SECONDS
