"""What the system says of a process in `/proc/PID/stat`.

Read by whoever must tell a process from another that has its number, or from what is left of one that has ended.
"""

from pathlib import Path

STATE, PARENT, STARTED = 0, 1, 19
"""Places in what `stat_of` gives: one letter; a process's number; ticks since the machine's start."""


def stat_of(pid: int) -> list[str] | None:
    """The fields after the command's name, which may hold anything; None where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_stopped(pid: int) -> bool:
    """Whether it was stopped by a signal, and does nothing until it is continued. Not: whether a debugger holds it."""
    stat = stat_of(pid)
    return stat is not None and stat[STATE] == "T"
