"""Rows of a JSONL file, one a line.

The file is indexed once by where its lines begin and read a line at a time, so that its size costs 24 bytes a line. It
must not change while a job runs; a line that no longer parses is named.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


_BLOCK_BYTES = 1 << 24


_BLANK_BYTES = 8
"""A line with more white space than this and nothing else is named as broken instead of being passed over."""


class LineFile:
    """Random access to the lines of a file that are not blank. Threads may read at the same time."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._edges, self._numbers = _index(self._fd)

    def __len__(self) -> int:
        return len(self._numbers)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def line(self, index: int) -> bytes:
        """The `index`-th line that is not blank."""
        start, end = self._edges[index].tolist()
        return os.pread(self._fd, end - start, start)

    def number(self, index: int) -> int:
        """Its number in the file, counted from 1 over all lines, as an editor shows it."""
        return int(self._numbers[index]) + 1


def _index(fd: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """[lines, 2] start and end, and [lines] number, of lines with more than white space."""
    newlines, size = _newlines(fd)
    ends = newlines if len(newlines) and newlines[-1] == size - 1 else np.append(newlines, size)
    starts = np.concatenate(([0], ends[:-1] + 1))
    edges = np.stack((starts, ends), axis=1)
    keep = ends - starts > _BLANK_BYTES
    for index in np.flatnonzero(~keep).tolist():
        start, end = edges[index].tolist()
        keep[index] = bool(os.pread(fd, end - start, start).strip())
    return edges[keep], np.flatnonzero(keep)


def _newlines(fd: int) -> tuple[npt.NDArray[np.int64], int]:
    found = [np.zeros(0, np.int64)]
    position = 0
    while block := os.pread(fd, _BLOCK_BYTES, position):
        found.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + position)
        position += len(block)
    return np.concatenate(found), position


class JsonlRows:
    """The objects of a file's lines."""

    unit = "line"

    def __init__(self, path: Path, field: str) -> None:
        """Raises ValueError where there is no such file or no prompt in it."""
        self._field = field
        self._file = open_lines(path, field)

    def __len__(self) -> int:
        return len(self._file)

    def number(self, index: int) -> int:
        """Number of the row's line in the file."""
        return self._file.number(index)

    def row(self, index: int) -> dict[str, Any]:
        """Reads one line."""
        where = f"{self._file.path} line {self._file.number(index)}"
        return parse_entry(self._file.line(index), where, self._field)


def open_lines(path: Path, field: str = "data.prompts") -> LineFile:
    """The lines of `path`; ValueError with a sentence where there are none."""
    try:
        lines = LineFile(path)
    except OSError as error:
        raise ValueError(
            f"{field}: {path} cannot be read ({error.strerror}). Relative paths are relative to the manifest."
        ) from error
    if not len(lines):
        raise ValueError(f"{field}: {path} has no prompt in it. Write one JSON object a line.")
    return lines


def parse_entry(line: bytes, where: str, field: str = "data.prompts") -> dict[str, Any]:
    """The object of one line."""
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{field}: {where} is not JSON ({error}). Write one object a line.") from error
    if not isinstance(entry, dict):
        raise ValueError(f"{field}: {where} is a {type(entry).__name__}, not an object. Write one object a line.")
    return entry
