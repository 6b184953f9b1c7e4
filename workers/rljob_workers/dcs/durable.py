"""Files that survive a power cut: written beside, checksummed on the way, synced, renamed.

Used by the checkpoint store only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_READ_BYTES = 1 << 22


def write_synced(path: Path, pieces: Iterable[ReadableBuffer]) -> str:
    """Writes a file, syncs it, gives its xxh3-64 (hex). Its name is durable after `sync_folder`."""
    digest = xxhash.xxh3_64()
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def replace_synced(path: Path, content: bytes) -> None:
    """Replaces a file: afterwards the old or the new content is there, never a part, also after a power cut."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    write_synced(beside, [content])
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_checksum(path: Path) -> str:
    """xxh3-64 (hex) of a file."""
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
