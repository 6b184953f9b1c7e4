"""Being told that something became ready. A lost notice costs a recheck and never a hang.

For `waits` only. One subscription connection per client, made when it first waits.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from rljob_workers.transfer_queue.address import ServerAddress
from rljob_workers.transfer_queue.control.connection import Clock, Sleep
from rljob_workers.transfer_queue.resp import BrokenReply, ErrorReply, RespConnection
from rljob_workers.transfer_queue.timing import QueueTiming

POLL_SECONDS = 0.02


class Notices(ABC):
    """Channels that are listened to, and what came on them."""

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
        """Nobody knows."""
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
        was_told = channel in self._noticed
        self._noticed.discard(channel)
        return was_told

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
        self._connection.flush(until)
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
