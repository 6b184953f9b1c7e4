"""Wakes long polls. Lives on the event loop; called from the coordinator's thread, too."""

from __future__ import annotations

import asyncio
from enum import Enum


class Topic(Enum):
    """What a long poll waits for."""

    ORDERS = "orders"
    EVENTS = "events"
    WEIGHTS = "weights"
    CHECKPOINTS = "checkpoints"
    RENDEZVOUS = "rendezvous"
    SERVER = "server"


class Notifier:
    """Counts notifications by topic. Read the counter before the state; a later notification then always wakes you."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counts = dict.fromkeys(Topic, 0)
        self._next = {topic: loop.create_future() for topic in Topic}

    def notify(self, *topics: Topic) -> None:
        """Wakes everyone who waits for one of the topics; callable from any thread."""
        self._loop.call_soon_threadsafe(self._count_up, topics)

    def count(self, topic: Topic) -> int:
        """Notifications so far; read it before looking at the state."""
        return self._counts[topic]

    async def wait(self, topic: Topic, count: int, seconds: float) -> None:
        """Returns when the topic was notified since `count` was read, or after `seconds`."""
        if self._counts[topic] != count or seconds <= 0:
            return
        await asyncio.wait([self._next[topic]], timeout=seconds)

    def _count_up(self, topics: tuple[Topic, ...]) -> None:
        for topic in topics:
            self._counts[topic] += 1
            waited_for, self._next[topic] = self._next[topic], self._loop.create_future()
            waited_for.set_result(None)
