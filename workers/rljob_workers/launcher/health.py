"""Whether an engine still answers: one GET request on and on, without a thread and without waiting.

Called by `engine_keeper` from the launcher's loop. A stopped process still accepts connections (the system does), so
only an answer counts.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Callable

from rljob_api.attended import AttendedTime
from rljob_workers.engines.backend import Ready

_REQUEST = "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
_STATUS_LINE = re.compile(rb"HTTP/1\.\d (\d{3})")

LONGEST_TURN_SECONDS = 1.0
"""More of the time between two turns is no silence of the engine: the launcher was held up itself."""


class HealthProbe:
    """One question at a time. Which status is the answer of a server that is up, its backend says."""

    def __init__(
        self, address: tuple[str, int], ready: Ready, interval_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._address = address
        self._request = _REQUEST.format(path=ready.path).encode()
        self._accepts = ready.accepts
        self._interval = interval_seconds
        self._clock = clock
        self._connection: socket.socket | None = None
        self._asked = False
        self._due = 0.0
        self._attended = AttendedTime(LONGEST_TURN_SECONDS, clock)
        self._is_waiting = False
        self.silence_seconds = 0.0
        """How long a question has been without an answer. Nobody is silent who was not asked."""
        self.answered = False
        """Whether this life of the engine has answered yet."""

    def fileno(self) -> int:
        """For select; -1 when no answer is awaited."""
        return -1 if self._connection is None else self._connection.fileno()

    def reset(self) -> None:
        """Forgets everything: a new life of the engine begins."""
        self.close()
        self._heard()
        self.answered = False
        self._attended.look()
        self._due = self._attended.looked_at

    def turn(self) -> None:
        """Asks if it is time, collects the answer if it is there. Never waits."""
        passed = self._attended.look()
        if self._is_waiting:
            self.silence_seconds += passed
        if self._connection is None and self._attended.looked_at >= self._due:
            self._connect()
        if self._connection is not None:
            self._converse(self._connection)

    def close(self) -> None:
        """Drops the question in flight."""
        self._asked = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._connection = connection
        self._is_waiting = True
        if connection.connect_ex(self._address) not in (0, errno.EINPROGRESS):
            self._again()

    def _converse(self, connection: socket.socket) -> None:
        try:
            if not self._asked:
                connection.send(self._request)
                self._asked = True
            status = _STATUS_LINE.match(connection.recv(4096))
            if status is not None and self._accepts(int(status[1])):
                self._heard()
                self.answered = True
            self._again()
        except BlockingIOError:
            return
        except OSError:
            self._again()

    def _heard(self) -> None:
        self._is_waiting, self.silence_seconds = False, 0.0

    def _again(self) -> None:
        self.close()
        self._due = self._clock() + self._interval
