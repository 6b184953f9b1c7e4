"""Wakes long polls. Lives on the event loop; rung from the coordinator's thread too."""

from __future__ import annotations

import asyncio
from enum import Enum


class Topic(Enum):
    """What a long poll waits for."""

    ORDERS = "orders"
    EVENTS = "events"
    WEIGHTS = "weights"
    RENDEZVOUS = "rendezvous"
    SERVER = "server"


class Bell:
    """Counts rings per topic: who read the count before looking cannot miss a ring after it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rings = dict.fromkeys(Topic, 0)
        self._next = {topic: loop.create_future() for topic in Topic}

    def ring(self, *topics: Topic) -> None:
        """Wakes everyone who waits for one of the topics; callable from any thread."""
        self._loop.call_soon_threadsafe(self._ring, topics)

    def count(self, topic: Topic) -> int:
        """Rings so far; read it before looking at the state."""
        return self._rings[topic]

    async def wait(self, topic: Topic, count: int, seconds: float) -> None:
        """Returns when the topic was rung since `count` was read, or after `seconds`."""
        if self._rings[topic] != count or seconds <= 0:
            return
        await asyncio.wait([self._next[topic]], timeout=seconds)

    def _ring(self, topics: tuple[Topic, ...]) -> None:
        for topic in topics:
            self._rings[topic] += 1
            rung, self._next[topic] = self._next[topic], self._loop.create_future()
            rung.set_result(None)
