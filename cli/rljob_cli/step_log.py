"""Logs with a line a sample, whose steps may stand there more than once: read, and without what was trained again.

Called by `audit` and `generations`. A global restart trains steps again that were lost with it: a later epoch's line of
step s voids earlier epochs' lines of steps >= s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

_Line = TypeVar("_Line")


def whole_lines(path: Path) -> list[bytes]:
    """A half last line (the writer is alive or was killed) is left out. Only line feeds end lines: text has others."""
    return path.read_bytes().split(b"\n")[:-1]


def surviving(lines: Iterable[_Line], place: Callable[[_Line], tuple[int, int]]) -> list[_Line]:
    """The lines that no later epoch has voided; `place` gives a line's epoch and step."""
    kept = [(line, *place(line)) for line in lines]
    first_step: dict[int, int] = {}
    for _, epoch, step in kept:
        first_step[epoch] = min(step, first_step.get(epoch, step))
    voided_from: dict[int, int] = {}
    lowest: int | None = None
    for epoch in sorted(first_step, reverse=True):
        if lowest is not None:
            voided_from[epoch] = lowest
        lowest = first_step[epoch] if lowest is None else min(lowest, first_step[epoch])
    return [line for line, epoch, step in kept if step < voided_from.get(epoch, step + 1)]
