"""Room on file systems: how much there is, and the sentence where it is too little for what is written there.

For what starts processes, before it does, and for what writes, when a file system is full. A process that runs out of
room fails its job with the sentence: a restart would only write the same again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rljob_api.model_files.size import num_parameters
from rljob_api.names import Role
from rljob_api.roles import TRAITS, field_name
from rljob_api.spec import RLJobSpec
from rljob_api.staged_weights import staged_bytes

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system, and no file of it


_FULL = (errno.ENOSPC, errno.EDQUOT)


def more_shared_memory(needed_bytes: int | None = None) -> str:
    """How a user gives it more, as a sentence without its end."""
    size = "SIZE" if needed_bytes is None else f"{-(-needed_bytes // (1 << 20))}m"
    return (
        f"Give it more: docker run --shm-size={size} (or --ipc=host); on Kubernetes resources.limits.memory of the"
        " role, or workloads.sharedMemory of the operator for pods without a limit, or the sizeLimit of a volume shm in"
        " the pod's template"
    )


def require_room_of_pod(spec: RLJobSpec, role: Role, folder: Path) -> None:
    """ValueError where the file system of `folder`, which a pod of the role has for itself, is too small.

    Says nothing where the model's files cannot be read: what reads the model names that.
    """
    traits = TRAITS[role]
    if traits.stream is None and not traits.saves:
        return
    try:
        needed = staged_bytes(spec, role, num_parameters(spec.model))
    except ValueError:
        return
    system = FileSystem.of(folder)
    if system.total_bytes >= needed:
        return
    raise ValueError(
        f"Weights on their way take about {in_units(needed)} in each pod of the role {field_name(role)}, and"
        f" {system} is smaller. {more_shared_memory(needed)}."
    )


@dataclass(frozen=True, slots=True)
class FileSystem:
    """The one that a folder is on."""

    path: Path
    """The folder at which it is mounted."""
    total_bytes: int
    free_bytes: int
    """For this user."""

    @classmethod
    def of(cls, folder: Path) -> FileSystem:
        """`folder` need not exist yet."""
        place = folder.absolute()
        while not place.exists():
            place = place.parent
        found, device = os.statvfs(place), place.stat().st_dev
        while place != place.parent and place.parent.stat().st_dev == device:
            place = place.parent
        return cls(place, found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail)

    def __str__(self) -> str:
        return f"{self.path} ({in_units(self.total_bytes)}, of which {in_units(self.free_bytes)} are free)"

    @property
    def cure(self) -> str:
        """As a sentence without its end."""
        return more_shared_memory() if self.path == SHARED_MEMORY else "Free some space there"


def in_units(number: int) -> str:
    """Bytes for a sentence."""
    size, units = float(number), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.4g} {units[0]}"


@contextmanager
def named_room(folder: Path, what: str) -> Iterator[None]:
    """Around what writes into `folder`: ValueError names file system, size and cure where it is full or read-only."""
    try:
        yield
    except Exception as error:
        is_full = is_no_room(error)
        if not is_full and not _has_number(error, (errno.EROFS,)):
            raise
        system = FileSystem.of(folder)
        how = f"has no room for {what}. {system.cure}" if is_full else f"is read-only, and {what} cannot be written"
        raise ValueError(f"The file system {system} {how}; then resume the job.") from error


def is_no_room(error: BaseException) -> bool:
    """True where it states that a file system, or a quota, is full."""
    return _has_number(error, _FULL)


def _has_number(error: BaseException, numbers: tuple[int, ...]) -> bool:
    """True where `error`, or what caused it, has one of the system's numbers; libraries in Rust write it out."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.errno in numbers:
            return True
        if any(f"(os error {number})" in str(link) for number in numbers):
            return True
        link = link.__cause__ or link.__context__
    return False
