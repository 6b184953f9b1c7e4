"""A file of JSON lines that a dead writer may have left with half a line. For the logs of this room."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def open_lines(path: Path) -> BinaryIO:
    """`path`, made if it is missing, for appending; half a line at its end is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b")
    _cut_torn_line(file.fileno())
    return file


def _cut_torn_line(fd: int) -> None:
    size = os.fstat(fd).st_size
    end = size
    while end:
        start = max(0, end - 65536)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(fd, end)
