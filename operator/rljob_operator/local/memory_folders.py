"""A run's folders in memory, or on a disk where memory has no room: staged weights and sockets, gone with the run.

Called by a start of `rljob run` and by `rljob evaluate`. Their names are derived from the run folder's path, so that
the next start finds and sweeps what a killed one has left.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rljob_api.machine.room import SHARED_MEMORY, FileSystem, in_units, more_shared_memory
from rljob_api.model_files.size import num_parameters
from rljob_api.spec import RLJob
from rljob_api.staged_weights import staged_bytes_of_all
from rljob_operator.local.errors import RunRefused


def staged_bytes_of(job: RLJob) -> int:
    """Bytes of weights on their way that the run keeps in memory.

    They leave out the weights of a model whose files cannot be read: its processes name what is wrong with them.
    """
    try:
        return staged_bytes_of_all(job.spec, num_parameters(job.spec.model))
    except ValueError:
        return staged_bytes_of_all(job.spec, 0)


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """The place of a run's staged weights."""

    path: Path
    note: str = ""
    """The reason for a disk, in a sentence; empty: it is in memory."""


def memory_paths(run: Path) -> tuple[Path, ...]:
    """Folders in memory, then on a disk, for this run folder: derived from its path, so the next start finds them."""
    name = f"rljob-{os.getuid()}-{hashlib.sha256(str(run.absolute()).encode()).hexdigest()[:12]}"
    bases = (SHARED_MEMORY, Path(tempfile.gettempdir()))
    return tuple(base / name for base in dict.fromkeys(bases) if os.access(base, os.W_OK))


def memory_place(run: Path, needed_bytes: int) -> MemoryPlace:
    """The first with room for that. What a killed start has left in any of them is swept.

    Raises RunRefused, with what there is and the cure, where none has as much.
    """
    paths = memory_paths(run)
    for path in paths:
        _sweep(path)
    systems = [FileSystem.of(path) for path in paths]
    found = next((path for path, system in zip(paths, systems, strict=True) if system.free_bytes >= needed_bytes), None)
    cure = more_shared_memory(needed_bytes)
    needed = f"weights on their way take about {in_units(needed_bytes)} of memory"
    if found is None:
        raise RunRefused(
            f"{needed}, and neither of {' and '.join(map(str, systems))} has as much. {cure}; or free"
            " some space, or set TMPDIR to a folder with room."
        )
    if found.parent == SHARED_MEMORY:
        return MemoryPlace(found)
    shared = next((str(system) for system in systems if system.path == SHARED_MEMORY), str(SHARED_MEMORY))
    return MemoryPlace(
        found,
        f"{needed}, which {shared} has not: they are written to {found.parent} instead, which costs the time of that"
        f" disk. {cure}.",
    )


@dataclass(frozen=True, slots=True)
class MemoryFolders:
    """Folders of a run that end with it."""

    sockets: Path
    """In memory whatever its room: they take none, and their paths must be short."""
    weights: Path
    """Staged weights: at the `memory_place`."""


def memory_folders(run: Path, needed_bytes: int) -> MemoryFolders:
    """Makes both, empty, for this user and this run. Raises RunRefused as `memory_place` does."""
    weights = memory_place(run, needed_bytes).path
    found = MemoryFolders(sockets=memory_folder(run), weights=_made(weights) / "weights")
    found.weights.mkdir(mode=0o700)
    return found


def memory_folder(run: Path) -> Path:
    """An empty folder in memory of this user and this run."""
    return _made(memory_paths(run)[0])


def _made(folder: Path) -> Path:
    """The folder, of this user and empty: looked at once it is there, as before that another user may put one there."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _sweep(folder)
    return folder


def _sweep(folder: Path) -> None:
    if not os.path.lexists(folder):
        return
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise RunRefused(f"{folder} belongs to somebody else. Remove it, or choose another folder with --out.")
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
