"""Whether an engine server is well: its answers to one GET request on and on, and the processes that it depends on.

`engines` asks in every turn of the launcher's loop. Never waits. A stopped process still accepts connections, so
only an answer counts; a server with a dead part may still answer.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from rljob_api.machine.attended_time import AttendedClock
from rljob_api.machine.process_stat import PARENT, STATE, stat_of
from rljob_workers.engines.backend import Ready

_REQUEST = "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


_STATUS_LINE = re.compile(rb"HTTP/1\.\d (\d{3})")


class HealthProbe:
    """One question at a time. Its backend defines which status is the answer of a server that is up."""

    def __init__(
        self,
        address: tuple[str, int],
        ready: Ready,
        interval_seconds: float,
        clock: Callable[[], float],
        attended: AttendedClock,
    ) -> None:
        """`attended` is ticked before each `turn`."""
        self._address = address
        self._request = _REQUEST.format(path=ready.path).encode()
        self._accepts = ready.accepts
        self._interval = interval_seconds
        self._clock = clock
        self._connection: socket.socket | None = None
        self._asked = False
        self._due = 0.0
        self._attended = attended
        self._asked_at: float | None = None
        """Attended seconds when the question was asked that has no answer yet."""
        self.answered = False
        """Whether this incarnation of the engine has answered yet."""

    @property
    def silence_seconds(self) -> float:
        """How long a question has been without an answer; 0 where none was asked."""
        return 0.0 if self._asked_at is None else self._attended.seconds - self._asked_at

    def fileno(self) -> int:
        """For select; -1 when no answer is awaited."""
        return -1 if self._connection is None else self._connection.fileno()

    def reset(self) -> None:
        """Forgets everything: a new incarnation of the engine begins."""
        self.close()
        self._asked_at = None
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
        if self._asked_at is None:
            self._asked_at = self._attended.seconds
        if connection.connect_ex(self._address) not in (0, errno.EINPROGRESS):
            self._again()

    def _converse(self, connection: socket.socket) -> None:
        try:
            if not self._asked:
                connection.send(self._request)
                self._asked = True
            status = _STATUS_LINE.match(connection.recv(4096))
            if status is not None and self._accepts(int(status[1])):
                self._asked_at = None
                self.answered = True
            self._again()
        except BlockingIOError:
            return
        except OSError:
            self._again()

    def _again(self) -> None:
        self.close()
        self._due = self._clock() + self._interval


_PROC = Path("/proc")


_ENDED = ("Z", "X")


class EngineParts:
    """Of one incarnation of an engine: the children of its first process whose titles its backend names."""

    def __init__(self, pattern: str | None) -> None:
        """`pattern` is a regular expression for the beginnings of titles; None: the server is one process."""
        self._pattern = None if pattern is None else re.compile(pattern)
        self._seen: dict[int, str] = {}

    @property
    def seen(self) -> tuple[int, ...]:
        """Those that were there at the last check."""
        return tuple(self._seen)

    def forget(self) -> None:
        """A new incarnation begins."""
        self._seen.clear()

    def lost(self, server: int) -> str | None:
        """Which part has died since the last check, for a sentence; None: all that were seen are there. Never waits."""
        if self._pattern is None or not _is_alive(stat_of(server)):
            return None  # with the server all of them go: its own end is what is reported
        gone = next((pid for pid in self._seen if not _is_living_child(pid, server)), None)
        if gone is not None:
            return f"its process {gone} ({self._seen[gone]}) has ended"
        self._seen |= {pid: title for pid, title in _children(server) if self._pattern.match(title)}
        return None


def _is_living_child(pid: int, server: int) -> bool:
    """By its own stat. A list of children may lack one that lives, while another or a thread of the server ends."""
    stat = stat_of(pid)
    return stat is not None and _is_alive(stat) and int(stat[PARENT]) == server


def _is_alive(stat: list[str] | None) -> bool:
    return stat is not None and stat[STATE] not in _ENDED


def _children(server: int) -> Iterator[tuple[int, str]]:
    """Living children of any of its threads, with their titles; perhaps not all of them, while something ends."""
    with suppress(OSError):  # it has just ended
        for thread in (_PROC / str(server) / "task").iterdir():
            with suppress(OSError):
                yield from ((pid, _title(pid)) for pid in _listed(thread) if _is_living_child(pid, server))


def _listed(thread: Path) -> list[int]:
    return [int(pid) for pid in (thread / "children").read_text().split()]


def _title(pid: int) -> str:
    return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
