"""What a power cut would leave: which files and names of this process had been synced when others could count on them.

The disk is real, and so are the syncs; here they are noted. A file counts as durable with its content at the
last sync, and a name with the last sync of its folder after it came there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch


class Disk:
    """What was synced, by inode."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._names: dict[int, set[tuple[str, int]]] = {}
        self._sync, self._data_sync = os.fsync, os.fdatasync

    def fsync(self, descriptor: int) -> None:
        """As the system's, noted."""
        self._sync(descriptor)
        self._note(descriptor)

    def fdatasync(self, descriptor: int) -> None:
        """As the system's, noted."""
        self._data_sync(descriptor)
        self._note(descriptor)

    def lost(self, file: Path) -> str | None:
        """What of a file would not be there after a power cut; None: it would be whole."""
        found = file.stat()
        if self._sizes.get(found.st_ino) != found.st_size:
            return f"the content of {file.name}"
        return self.lost_name(file)

    def lost_name(self, path: Path) -> str | None:
        """As `lost`, of a name alone."""
        entry = (path.name, path.stat().st_ino)
        return None if entry in self._names.get(path.parent.stat().st_ino, set()) else f"the name {path.name}"

    def brings_back(self, folder: Path) -> set[str]:
        """Names that are gone from a folder, and would be there again."""
        synced = self._names.get(folder.stat().st_ino)
        assert synced is not None, f"{folder} was never synced"
        return {name for name, _ in synced} - {entry.name for entry in folder.iterdir()}

    def _note(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        folder = Path(f"/proc/self/fd/{descriptor}").resolve()
        if folder.is_dir():
            self._names[found.st_ino] = {(entry.name, entry.inode()) for entry in os.scandir(folder)}
        else:
            self._sizes[found.st_ino] = found.st_size


@contextmanager
def noted_syncs() -> Iterator[Disk]:
    """The syncs of all threads of this process, from now on."""
    disk = Disk()
    with patch("os.fsync", disk.fsync), patch("os.fdatasync", disk.fdatasync):
        yield disk
