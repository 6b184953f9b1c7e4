"""Whether an engine still answers: `GET /health` without a thread and without waiting.

Called by `engine_keeper` from the launcher's loop. A stopped process still accepts connections (the system does), so
only an answer counts.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

_REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
_STATUS_LINE = b"HTTP/1."


class HealthProbe:
    """One question at a time. Any status is an answer: an engine that waits for weights is not dead."""

    def __init__(self, address: tuple[str, int], interval_seconds: float, clock: Callable[[], float]) -> None:
        self._address = address
        self._interval = interval_seconds
        self._clock = clock
        self._connection: socket.socket | None = None
        self._asked = False
        self._due = 0.0
        self._unanswered_since: float | None = None
        self.answered = False
        """Whether this life of the engine has answered yet."""

    @property
    def silence_seconds(self) -> float:
        """How long a question has been without an answer. Nobody is silent who was not asked."""
        return 0.0 if self._unanswered_since is None else self._clock() - self._unanswered_since

    def fileno(self) -> int:
        """For select; -1 when no answer is awaited."""
        return -1 if self._connection is None else self._connection.fileno()

    def reset(self) -> None:
        """Forgets everything: a new life of the engine begins."""
        self.close()
        self._unanswered_since = None
        self.answered = False
        self._due = self._clock()

    def turn(self) -> None:
        """Asks if it is time, collects the answer if it is there. Never waits."""
        if self._connection is None and self._clock() >= self._due:
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
        if self._unanswered_since is None:
            self._unanswered_since = self._clock()
        if connection.connect_ex(self._address) not in (0, errno.EINPROGRESS):
            self._again()

    def _converse(self, connection: socket.socket) -> None:
        try:
            if not self._asked:
                connection.send(_REQUEST)
                self._asked = True
            if connection.recv(4096).startswith(_STATUS_LINE):
                self._unanswered_since = None
                self.answered = True
            self._again()
        except BlockingIOError:
            return
        except OSError:
            self._again()

    def _again(self) -> None:
        self.close()
        self._due = self._clock() + self._interval
