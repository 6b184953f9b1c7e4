"""Being told that something became ready. A lost notice costs a recheck and never a hang.

For `client`. One subscription connection per client, made when it first waits.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import redis

from rljob_workers.transfer_queue.control.connection import Clock, Sleep, open_connection

RECHECK_SECONDS = 1.0
"""Longest wait for one notice: notices are not kept for those who were not connected."""
POLL_SECONDS = 0.02


class Notices(ABC):
    """Waits in the order: `prepare`, ask the queue, `wait`, ask again ..."""

    @abstractmethod
    def prepare(self, channel: str) -> None:
        """From here on no notice on `channel` is missed (as far as the connection holds)."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Returns at a notice, or when it is time to ask again, at the latest after `seconds`."""

    @abstractmethod
    def close(self) -> None:
        """May be called twice."""


class Polling(Notices):
    """Asks again and again."""

    def __init__(self, sleep: Sleep = time.sleep) -> None:
        self._sleep = sleep

    def prepare(self, channel: str) -> None:
        """Nothing to do."""

    def wait(self, seconds: float) -> None:
        """Sleeps for a moment."""
        self._sleep(max(0.0, min(seconds, POLL_SECONDS)))

    def close(self) -> None:
        """Nothing to do."""


class Subscription(Notices):
    """Redis pub/sub on one connection."""

    def __init__(self, url: str, *, clock: Clock = time.monotonic, sleep: Sleep = time.sleep) -> None:
        """Connects when first used."""
        self._url = url
        self._clock = clock
        self._sleep = sleep
        self._connection: Any = None
        self._channels: set[str] = set()

    def prepare(self, channel: str) -> None:
        """Subscribes once; later only drops notices that came before."""
        self._guarded(lambda: self._subscribe(channel))

    def wait(self, seconds: float) -> None:
        """Reads one notice. Without a connection it is a short sleep."""
        seconds = min(seconds, RECHECK_SECONDS)
        if seconds <= 0:
            return
        if self._connection is None:
            self._sleep(min(seconds, POLL_SECONDS))
            return
        self._guarded(lambda: self._read_one(seconds))

    def close(self) -> None:
        """Ends the subscription."""
        connection, self._connection = self._connection, None
        self._channels.clear()
        if connection is not None:
            connection.disconnect()

    def _subscribe(self, channel: str) -> None:
        if self._connection is None:
            self._connection = open_connection(self._url)
        if channel not in self._channels:
            self._connection.connect()
            self._connection.send_command("SUBSCRIBE", f"n:{channel}")
            self._channels.add(channel)
            self._connection.read_response()
        while self._connection.can_read(timeout=0):
            self._connection.read_response()

    def _read_one(self, seconds: float) -> None:
        assert self._connection is not None
        if self._connection.can_read(timeout=seconds):
            self._connection.read_response()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (redis.RedisError, OSError):
            # The queue itself is asked next, over its own connection, and names the trouble if it lasts.
            self.close()
