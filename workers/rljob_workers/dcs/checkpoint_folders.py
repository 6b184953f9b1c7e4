"""Which checkpoint folders may go. Pure: knows names and versions, deletes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_NAME = re.compile(r"^(?P<partial>\.partial-)?(?P<version>\d+)-e(?P<epoch>\d+)-(?P<incarnation>[0-9a-f]{12})$")
_REFERENCE = re.compile(r"^(?P<version>\d+)-e(?P<epoch>\d+)-[0-9a-f]{12}\.safetensors$")
_DELETED = ".deleted-"
DAMAGED_SUFFIX = ".damaged"
"""Of a folder or record file that is kept and never read again."""


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """A folder below the checkpoint path, as its name and its mark say."""

    name: str
    version: int
    epoch: int
    is_partial: bool
    """Still being written, or left so by a death."""
    is_recorded: bool


def folder_name(version: int, epoch: int, incarnation: str) -> str:
    """Bound to epoch and incarnation: no later life can write into it."""
    return f"{version}-e{epoch}-{incarnation}"


def partial_name(name: str) -> str:
    """Where a folder is written before it is renamed."""
    return f".partial-{name}"


def parse_folder(name: str, *, is_recorded: bool) -> CheckpointFolder | None:
    """None for a name that is not ours."""
    match = _NAME.match(name)
    if match is None:
        return None
    return CheckpointFolder(name, int(match["version"]), int(match["epoch"]), match["partial"] is not None, is_recorded)


def deleted_name(name: str) -> str:
    """What a folder is called while it is deleted."""
    return f"{_DELETED}{name.removeprefix('.partial-')}"


def is_deleted(name: str) -> bool:
    """Whether a deletion has left it."""
    return name.startswith(_DELETED) and _NAME.match(name.removeprefix(_DELETED)) is not None


def parse_damaged(name: str) -> CheckpointFolder | None:
    """A folder that was put aside, by what it was called; None for a name that is not ours."""
    is_aside = name.endswith(DAMAGED_SUFFIX)
    return parse_folder(name.removesuffix(DAMAGED_SUFFIX), is_recorded=True) if is_aside else None


def parse_reference(name: str) -> tuple[int, int] | None:
    """Version and epoch of a kept reference version; None for a name that is not ours."""
    match = _REFERENCE.match(name)
    return None if match is None else (int(match["version"]), int(match["epoch"]))


@dataclass(frozen=True, slots=True)
class Retention:
    """Which recorded versions stay."""

    keep: int
    """So many of the newest."""
    keep_every: int | None = None
    """Beside them every version that is a multiple of this, for ever. None: no other."""

    def stays_for_ever(self, version: int) -> bool:
        """Whether no later record makes this version superfluous. Version 0, what training began with, is none."""
        return self.keep_every is not None and version > 0 and version % self.keep_every == 0


def folders_to_delete(
    folders: Iterable[CheckpointFolder], recorded: str, epoch: int, retention: Retention
) -> list[str]:
    """What a new record `recorded` of `epoch` makes superfluous, oldest first.

    Kept are the record, the `keep` - 1 newest recorded versions before it and those that stay for ever (of a version
    that was recorded in two epochs the later one: the earlier is of a past that a restore left), unrecorded folders of
    this epoch that are newer (in work; the older were given up, and every rank has written to the recorded one since),
    and all of a later epoch: whoever prunes may have been stopped since its record and be a past itself.
    """
    present = sorted(folders, key=lambda folder: (folder.version, folder.epoch))
    current = next(folder for folder in present if folder.name == recorded)
    newest: dict[int, str] = {
        folder.version: folder.name for folder in present if folder.is_recorded and folder.version < current.version
    }
    kept = {recorded, *list(newest.values())[max(0, len(newest) - (retention.keep - 1)) :]}
    kept |= {name for version, name in newest.items() if retention.stays_for_ever(version)}
    in_work = {
        folder.name
        for folder in present
        if not folder.is_recorded and folder.epoch >= epoch and folder.version > current.version
    }
    later = {folder.name for folder in present if folder.epoch > epoch}
    return [folder.name for folder in present if folder.name not in kept | in_work | later]
