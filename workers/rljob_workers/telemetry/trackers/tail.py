"""Reads the lines that a run has written since last time, and remembers how far. Knows no tracker."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel

MAX_BYTES = 4 << 20
"""Read at once: a run that is followed from its first line on is given in parts. No line of ours is as long."""


class Place(BaseModel):
    """How far a file was read."""

    inode: int = 0
    """0: nothing of it was."""
    offset: int = 0
    lines: int = 0
    """Whole ones before `offset`."""


Line = dict[str, Any]
Part = tuple[list[tuple[Line, Place]], Place]
"""Lines, each with the place after it, and the place after all that was read."""


def read_on(file: Path, place: Place, older: Path | None = None) -> Part:
    """Whole lines after `place`. A line that is no object is left out, since a kill tore it.

    Where `file` was replaced by another, the rest of it is read at `older` first, where that is it.
    """
    try:
        with file.open("rb") as opened:
            inode = os.fstat(opened.fileno()).st_ino
            if place.inode not in (0, inode):
                rest = _rest(older, place) if older is not None else None
                if rest is not None and rest[0]:
                    return rest
                place = Place(lines=place.lines)
            opened.seek(place.offset)
            return _lines(opened.read(MAX_BYTES), place, inode)
    except FileNotFoundError:
        return [], place


def _rest(older: Path, place: Place) -> Part | None:
    try:
        with older.open("rb") as opened:
            if os.fstat(opened.fileno()).st_ino != place.inode:
                return None
            opened.seek(place.offset)
            return _lines(opened.read(MAX_BYTES), place, place.inode)
    except FileNotFoundError:
        return None


def _lines(data: bytes, place: Place, inode: int) -> Part:
    found: list[tuple[Line, Place]] = []
    after = place
    for part in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
        after = Place(inode=inode, offset=after.offset + len(part), lines=after.lines + 1)
        line = _object(part)
        if line is not None:
            found.append((line, after))
    return found, after


def _object(part: bytes) -> Line | None:
    try:
        found = json.loads(part)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
