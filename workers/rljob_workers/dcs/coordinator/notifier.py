"""Wakes long polls. Lives on the event loop; called from the coordinator's thread, too."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection
from enum import Enum


class Topic(Enum):
    """What a long poll waits for."""

    ORDERS = "orders"
    """By pod: hundreds of launchers wait, and most changes are about one pod."""
    REPLICAS = "replicas"
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
        self._counts_by_key: Counter[tuple[Topic, str]] = Counter()
        self._waited_for: defaultdict[Topic, dict[str, asyncio.Future[None]]] = defaultdict(dict)

    def notify(self, topic: Topic, keys: Collection[str] | None = None) -> None:
        """Wakes those who wait for the topic under one of the keys, without keys everyone; callable from any thread."""
        self._loop.call_soon_threadsafe(self._count_up, topic, keys)

    def count(self, topic: Topic, key: str = "") -> int:
        """Notifications so far; read it before looking at the state."""
        return self._counts[topic] + self._counts_by_key[topic, key]

    async def wait(self, topic: Topic, count: int, seconds: float, key: str = "") -> None:
        """Returns when the topic was notified since `count` was read, or after `seconds`."""
        if self.count(topic, key) != count or seconds <= 0:
            return
        waited_for = self._waited_for[topic].get(key)
        if waited_for is None:
            waited_for = self._waited_for[topic][key] = self._loop.create_future()
        await asyncio.wait([waited_for], timeout=seconds)

    def _count_up(self, topic: Topic, keys: Collection[str] | None) -> None:
        waited_for = self._waited_for[topic]
        if keys is None:
            self._counts[topic] += 1
            woken = list(waited_for.values())
            waited_for.clear()
        else:
            self._counts_by_key.update((topic, key) for key in keys)
            woken = [waited_for.pop(key) for key in keys if key in waited_for]
        for one in woken:
            one.set_result(None)
