"""One client's talk with the control Redis: numbered calls, one at a time, until the client is closed.

For `session`. Before its first call a client meets the queue: it makes sure that it means the same servers as others.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rljob_api.failpoints import failpoint
from rljob_transfer_queue.library import library
from rljob_workers.transfer_queue.control.connection import Argument, ControlConnection

PATIENCE_SECONDS = 30.0
"""How long a call waits for its servers: a restart of Redis takes about a second."""


class ControlPlane:
    """Calls of one client; any thread may call.

    with control.turn():
        control.change("put", ..., what="puts 8 rows of train_0")
    """

    def __init__(self, name: str, url: str, incarnation: str, meet: Callable[[], None]) -> None:
        """Connects when first used; `meet` is called before the first call."""
        self._name = name
        self._id = incarnation
        self._meet = meet
        self._connection = ControlConnection(url, library())
        self._calls = 0
        self._lock = threading.Lock()
        self._speaker: int | None = None
        """The thread whose turn it is."""
        self._has_met = False
        self._is_closed = False
        self._process = os.getpid()

    def close(self, also: Callable[[], None]) -> None:
        """Refuses calls from now on and ends the connection, and what `also` ends, after the call under way."""
        self._is_closed = True
        if self._process != os.getpid():
            # A forked child: the connections are its parent's, and so is the thread that may hold the lock.
            return
        with self._lock:
            self._connection.close()
            also()

    def require_open(self) -> None:
        """Raises RuntimeError where the client was closed, or belongs to another process."""
        if self._is_closed:
            raise RuntimeError(f"TransferQueue: client {self._name} is closed. Make a new one, or call init again.")
        if self._process != os.getpid():
            raise RuntimeError(
                f"TransferQueue: client {self._name} belongs to process {self._process}, not to its fork"
                f" {os.getpid()}. Make a client there."
            )

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Calls inside follow each other without other calls in between. A turn may be taken inside a turn."""
        if self._speaker == threading.get_ident():
            yield
            return
        self.require_open()
        with self._lock:
            # It may have been closed while others had their turn.
            self.require_open()
            self._speaker = threading.get_ident()
            try:
                if not self._has_met:
                    self._meet()
                    self._has_met = True
                yield
            finally:
                self._speaker = None

    def change(self, name: str, *arguments: Argument, what: str) -> list[Any]:
        """Calls a function that changes something: applied once, however often the call is repeated."""
        with self.turn():
            self._calls += 1
            reply: list[Any] = self.call(name, self._id, self._calls, *arguments, what=what)
            failpoint("queue.after_script")
            return reply

    def call(self, name: str, *arguments: Argument, what: str) -> Any:  # noqa: ANN401 - a reply of Redis
        """Calls any other function; `what` names in an error what the client does."""
        with self.turn():
            return self._connection.read(name, *arguments, deadline=self.deadline(), waiting=f"{self._name} {what}")

    def deadline(self) -> float:
        """Of what begins now."""
        return time.monotonic() + PATIENCE_SECONDS
