"""The processes that a server cannot do without: one that dies ends the engine, whether the server notices or not.

Called by `engine_keeper` from the launcher's loop. A server whose part is dead may still answer what its launcher asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rljob_api.process_stat import PARENT, STATE, stat_of

_PROC = Path("/proc")
_ENDED = ("Z", "X")


class EngineParts:
    """Of one life of an engine: the children of its first process whose titles its backend names."""

    def __init__(self, pattern: str | None) -> None:
        """`pattern` is a regular expression for the beginnings of titles; None: the server is one process."""
        self._pattern = None if pattern is None else re.compile(pattern)
        self._seen: dict[int, str] = {}

    @property
    def seen(self) -> tuple[int, ...]:
        """Those that were there at the last look."""
        return tuple(self._seen)

    def forget(self) -> None:
        """A new life begins."""
        self._seen.clear()

    def lost(self, server: int) -> str | None:
        """Which part has died since the last look, in words; None: all that were seen are there. Never waits."""
        if self._pattern is None or not _lives(stat_of(server)):
            return None  # with the server all of them go: its own end is what is told
        gone = next((pid for pid in self._seen if not _is_living_child(pid, server)), None)
        if gone is not None:
            return f"its process {gone} ({self._seen[gone]}) has ended"
        self._seen |= {pid: title for pid, title in _children(server) if self._pattern.match(title)}
        return None


def _is_living_child(pid: int, server: int) -> bool:
    """By its own word. A list of children may lack one that lives, while another or a thread of the server ends."""
    stat = stat_of(pid)
    return stat is not None and _lives(stat) and int(stat[PARENT]) == server


def _lives(stat: list[str] | None) -> bool:
    return stat is not None and stat[STATE] not in _ENDED


def _children(server: int) -> Iterator[tuple[int, str]]:
    """Living children of any of its threads, with their titles; perhaps not all of them, while something ends."""
    with suppress(OSError):  # it has just ended
        for thread in (_PROC / str(server) / "task").iterdir():
            with suppress(OSError):
                yield from ((pid, _title(pid)) for pid in _listed(thread) if _is_living_child(pid, server))


def _listed(thread: Path) -> list[int]:
    return [int(word) for word in (thread / "children").read_text().split()]


def _title(pid: int) -> str:
    return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
