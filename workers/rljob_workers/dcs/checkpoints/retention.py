"""Which checkpoints a new record makes superfluous, and their deletion: folders, then unnamed reference versions.

Only the leader's writer thread calls it, after its record. Deletes by exact names, since the path may have the user's
own files; never deletes what a later epoch wrote.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from rljob_workers.dcs.checkpoints.on_disk import (
    RECORDED_MARK,
    REFERENCE_FOLDER,
    CheckpointFolder,
    Reference,
    deleted_name,
    files_named,
    is_deleted,
    parse_damaged,
    parse_folder,
    parse_reference,
)
from rljob_workers.dcs.errors import CheckpointDamaged, CheckpointUnreadable


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
    folders: Iterable[CheckpointFolder], recorded: str, epoch: int, retention: Retention, best: str | None = None
) -> list[str]:
    """What a new record `recorded` of `epoch` makes superfluous, oldest first.

    Kept are the record, the `keep` - 1 newest recorded versions before it, `best`, those that stay for ever (of a
    version that was recorded in two epochs the later one: the earlier is of a past that a restore left), unrecorded
    folders of this epoch that are newer (in work; older ones were given up, and every rank has written to this since),
    and all of a later epoch: the process that prunes may have been stopped since its record and be of a past itself.
    """
    present = sorted(folders, key=lambda folder: (folder.version, folder.epoch))
    current = next(folder for folder in present if folder.name == recorded)
    newest: dict[int, str] = {
        folder.version: folder.name for folder in present if folder.is_recorded and folder.version < current.version
    }
    retained = {recorded, *list(newest.values())[max(0, len(newest) - (retention.keep - 1)) :]}
    retained |= set() if best is None else {best}
    retained |= {name for version, name in newest.items() if retention.stays_for_ever(version)}
    in_work = {
        folder.name
        for folder in present
        if not folder.is_recorded and folder.epoch >= epoch and folder.version > current.version
    }
    later = {folder.name for folder in present if folder.epoch > epoch}
    return [folder.name for folder in present if folder.name not in retained | in_work | later]


def prune(
    root: Path,
    recorded: str,
    epoch: int,
    retention: Retention,
    in_use: Collection[Reference],
    best: str | None = None,
) -> None:
    """Below `root`: `in_use` are the reference versions of this rank that no folder names yet.

    `best` is the folder that keepBest keeps, if any.
    """
    found = (
        parse_folder(path.name, is_recorded=(path / RECORDED_MARK).exists()) for path in root.iterdir() if path.is_dir()
    )
    folders = [folder for folder in found if folder is not None]
    for name in folders_to_delete(folders, recorded, epoch, retention, best):
        # Gone from its name first: a deletion that is cut off leaves nothing that passes for a checkpoint.
        with contextlib.suppress(FileNotFoundError):
            (root / name).rename(root / deleted_name(name))
    for doomed in [path for path in root.iterdir() if is_deleted(path.name)]:
        shutil.rmtree(doomed, ignore_errors=True)
    _prune_references(root, epoch, in_use)


def _prune_references(root: Path, epoch: int, in_use: Collection[Reference]) -> None:
    """Deletes the files that no folder names; those of this epoch, of any rank, only below the version in use.

    A folder that was put aside as damaged still names its own: its owner may cure it. One whose notes are not what was
    written may name any version that was there when it was written.
    """
    named = {one.file for one in in_use}
    unsure: list[CheckpointFolder] = []
    for path in root.iterdir():
        folder = parse_folder(path.name, is_recorded=False) or parse_damaged(path.name)
        if folder is None:
            continue
        try:
            named |= files_named(path, is_whole=not folder.is_partial)
        except (CheckpointDamaged, CheckpointUnreadable):
            unsure.append(folder)
    for path in (root / REFERENCE_FOLDER).glob("*.safetensors"):
        found = parse_reference(path.name)
        if found is None:
            continue
        version, written = found
        is_now = written == epoch and all(version >= one.version for one in in_use)
        may_be_named = any(version <= folder.version and written <= folder.epoch for folder in unsure)
        if path.name in named or written > epoch or is_now or may_be_named:
            continue
        path.unlink(missing_ok=True)
