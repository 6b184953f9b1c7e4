"""Deletes what a record makes superfluous: folders, then reference versions that no folder names.

By exact names, since the path may be a folder of the user's that has other files, too.

Called by the leader's writer thread, after its record only.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection
from pathlib import Path

from rljob_workers.dcs.checkpoint_folders import (
    CheckpointFolder,
    Retention,
    deleted_name,
    folders_to_delete,
    is_deleted,
    parse_damaged,
    parse_folder,
    parse_reference,
)
from rljob_workers.dcs.checkpoint_layout import RECORDED_MARK, REFERENCE_FOLDER, Reference
from rljob_workers.dcs.checkpoint_on_disk import files_named
from rljob_workers.dcs.errors import CheckpointDamaged, CheckpointUnreadable


def prune(root: Path, recorded: str, epoch: int, retention: Retention, in_use: Collection[Reference]) -> None:
    """Below `root`: `in_use` are the reference versions of this rank that no folder names yet."""
    found = (
        parse_folder(path.name, is_recorded=(path / RECORDED_MARK).exists()) for path in root.iterdir() if path.is_dir()
    )
    folders = [folder for folder in found if folder is not None]
    for name in folders_to_delete(folders, recorded, epoch, retention):
        # Gone from its name first: a deletion that is cut off leaves nothing that looks like a checkpoint.
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
