"""Reads `/proc/PID` of a process: its state, its parent, its start, and how far it has come.

Read to distinguish a process from a later one with the same pid, and a slow process from one that hangs.
"""

from contextlib import suppress
from pathlib import Path

STATE, PARENT, MAJOR_FAULTS, USER_TICKS, SYSTEM_TICKS, STARTED = 0, 1, 9, 11, 12, 19
"""Places in what `stat_of` gives: one letter; a process's number; pages read for it; ticks of CPU; ticks since boot."""


_TICKS, _BYTES, _PAGES = 100, 1 << 20, 100
"""A second of CPU, 1 MiB, 100 pages of mapped files: a thread that only looks at a clock does less."""


def stat_of(pid: int) -> list[str] | None:
    """The fields after the command's name, which may hold anything; None where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def progress_of(pid: int) -> tuple[int, int, int] | None:
    """Seconds of CPU, MiB read, hundreds of pages read: differs from an earlier answer of a process that works.

    An import from a slow disk waits more than it computes, and both kinds of reading show that it goes on. None where
    there is no such process.
    """
    stat = stat_of(pid)
    if stat is None:
        return None
    ticks = int(stat[USER_TICKS]) + int(stat[SYSTEM_TICKS])
    return ticks // _TICKS, _bytes_read(pid) // _BYTES, int(stat[MAJOR_FAULTS]) // _PAGES


def _bytes_read(pid: int) -> int:
    """Bytes read by system calls; 0 where this user may not see it."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("rchar:")), 0)
    return 0


def is_stopped(pid: int) -> bool:
    """Whether it was stopped by a signal, and does nothing until it is continued. Not: whether a debugger holds it."""
    stat = stat_of(pid)
    return stat is not None and stat[STATE] == "T"
