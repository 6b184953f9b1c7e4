"""Files of a run folder: how they are replaced, appended to and read, so that a kill leaves no half of one.

Used by `run_folder` and those beside it that read or write its files.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a file; a torn last line, left by a kill, is skipped."""
    if not file.exists():
        return
    for line in file.read_bytes().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def append_line(file: Path, line: Mapping[str, object]) -> None:
    """One write per line: a kill can tear only the last one, which the next line then closes."""
    with file.open("a+b") as out:
        size = out.seek(0, os.SEEK_END)
        out.seek(max(0, size - 1))
        torn = size > 0 and out.read(1) != b"\n"
        out.write((b"\n" if torn else b"") + json.dumps(line).encode() + b"\n")


def replace_file(file: Path, data: bytes, *, durable: bool) -> None:
    """Atomically; `durable` also waits for the disk."""
    beside = file.with_name(f".{file.name}.new")
    with beside.open("wb") as out:
        out.write(data)
        if durable:
            out.flush()
            os.fsync(out.fileno())
    beside.replace(file)
    if durable:
        sync_folder(file.parent)


def sync_folder(path: Path) -> None:
    """Waits until the disk has the names in this folder."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_secret(file: Path, data: bytes) -> None:
    """A file that only its owner may read, from its first moment on."""
    beside = file.with_name(f".{file.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(data)
    beside.replace(file)
