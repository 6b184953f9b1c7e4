"""Whether an engine that has requests still makes tokens.

Pure but for its clock. Told by the groups in work and the weight follower, from their threads; asked by the former.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Standstill:
    """The time since an engine made its last token, while it has requests and its weights are not being changed.

    One clock for all requests of an engine, none for each: a request that waits for a place in the server's batch, or
    that lost its place to others, makes no token for as long as they take, and must not be begun anew for that. One
    that the server has lost for good stands alone in the end, since no rollout is complete without it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._requests = 0
        self._excuses = 0
        self._since = clock()

    @property
    def last_progress(self) -> float:
        """When, by the clock, the engine last made a token, got something to do, or was done with an update."""
        with self._lock:
            return self._since

    def seconds(self) -> float:
        """Seconds of standstill; 0 where nothing is to be expected of the engine."""
        with self._lock:
            return 0.0 if self._excuses or not self._requests else self._clock() - self._since

    def progress(self) -> None:
        """The engine has made a token, or shown other work."""
        with self._lock:
            self._since = self._clock()

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request is at the engine."""
        with self._lock:
            if not self._requests:
                self._since = self._clock()
            self._requests += 1
        try:
            yield
        finally:
            with self._lock:
                self._requests -= 1

    @contextmanager
    def excused(self) -> Iterator[None]:
        """The engine may stand still: it is paused for an update, which has a deadline of its own."""
        with self._lock:
            self._excuses += 1
        try:
            yield
        finally:
            with self._lock:
                self._excuses -= 1
                self._since = self._clock()
