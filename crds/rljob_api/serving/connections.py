"""Connections of one listening port: how long a client may keep its server waiting, and which connection gives way.

Every server of ours keeps one `Connections` for each of its ports and closes what that names, so that clients which
connect and send nothing, half a request, or read no answer, keep neither a probe nor another client from its answer.
Pure but for the clock; the server does what is named.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Waits(Enum):
    """The event that a connection waits for."""

    REQUEST = "request"
    """The client has not sent all of its request."""
    READER = "reader"
    """The client does not read the answer."""
    NEXT = "next"
    """The client may send another request. How long, the server decides."""
    ANSWER = "answer"
    """The server has not answered. Such a connection never gives way."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of what clients of a port may take."""

    most: int
    """Connections at the same time; one more closes one that waits for its client."""
    request_seconds: float
    """From its first byte, or the connection, to the end of a request."""
    reader_seconds: float
    """Until the client reads on."""


@dataclass(slots=True)
class _Connection:
    source: str
    waits: Waits
    since: float


class Connections(Generic[K]):
    """The connections of one port. `K` is the server's own object of a connection.

    gives_way = connections.opened(one, "10.0.0.7")     # to be closed, or None
    connections.waits(one, Waits.ANSWER)
    for late in connections.overdue(): late.close()
    connections.closed(one)                             # also of those
    """

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic) -> None:
        self.bounds = bounds
        self._clock = clock
        self._open: dict[K, _Connection] = {}
        self._waiting: defaultdict[str, dict[K, None]] = defaultdict(dict)
        """Connections that wait for their client, by source; the one that has waited for longest is the first."""

    def __len__(self) -> int:
        return len(self._open)

    def open(self) -> list[K]:
        """All of them."""
        return list(self._open)

    def opened(self, key: K, source: str) -> K | None:
        """A client has connected. Which connection is to be closed for it: it itself where all others are answered."""
        self._open[key] = _Connection(source, Waits.REQUEST, self._clock())
        self._waiting[source][key] = None
        return self._first_to_go() if len(self._open) > self.bounds.most else None

    def waits(self, key: K, what: Waits) -> None:
        """A connection waits for something from now on; without effect where it has been waiting for that."""
        connection = self._open.get(key)
        if connection is None or connection.waits is what:
            return
        connection.waits, connection.since = what, self._clock()
        self._forget(key, connection.source)
        if what is not Waits.ANSWER:
            self._waiting[connection.source][key] = None

    def closed(self, key: K) -> None:
        """A connection is no more."""
        connection = self._open.pop(key, None)
        if connection is not None:
            self._forget(key, connection.source)

    def overdue(self) -> list[K]:
        """Connections whose client has kept the server waiting for too long: they are to be closed."""
        now = self._clock()
        limits = {Waits.REQUEST: self.bounds.request_seconds, Waits.READER: self.bounds.reader_seconds}
        return [
            key
            for waiting in self._waiting.values()
            for key in waiting
            if (limit := limits.get(self._open[key].waits)) is not None and now - self._open[key].since >= limit
        ]

    def _first_to_go(self) -> K:
        """The one that has waited for longest, of the source with the most that wait: one address takes from itself."""
        source = max(self._waiting, key=lambda each: len(self._waiting[each]))
        return next(iter(self._waiting[source]))

    def _forget(self, key: K, source: str) -> None:
        waiting = self._waiting.get(source)
        if waiting is not None:
            waiting.pop(key, None)
            if not waiting:
                del self._waiting[source]
