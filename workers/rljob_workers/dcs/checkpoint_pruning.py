"""Deletes what a record makes superfluous: folders, then reference versions that no folder names.

Called by the leader's writer thread, after its record only.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Collection
from pathlib import Path

from rljob_workers.dcs.checkpoint_folders import Retention, folders_to_delete, parse_folder
from rljob_workers.dcs.checkpoint_layout import RECORDED_MARK, REFERENCE_FOLDER, REFERENCE_PATTERN, Reference


def prune(root: Path, recorded: str, epoch: int, retention: Retention, in_use: Collection[Reference]) -> None:
    """Below `root`: `in_use` are the reference versions of this rank that no folder names yet."""
    found = (
        parse_folder(path.name, is_recorded=(path / RECORDED_MARK).exists()) for path in root.iterdir() if path.is_dir()
    )
    folders = [folder for folder in found if folder is not None]
    for name in folders_to_delete(folders, recorded, epoch, retention):
        # Gone from its name first: a deletion that is cut off leaves nothing that looks like a checkpoint.
        doomed = root / f".deleted-{name.removeprefix('.partial-')}"
        with contextlib.suppress(FileNotFoundError):
            (root / name).rename(doomed)
    for doomed in root.glob(".deleted-*"):
        shutil.rmtree(doomed, ignore_errors=True)
    _prune_references(root, epoch, in_use)


def _prune_references(root: Path, epoch: int, in_use: Collection[Reference]) -> None:
    """Deletes the files that no folder names; those of this epoch, of any rank, only below the version in use."""
    named = {json.loads(path.read_bytes())["file"] for path in root.glob(f"*/{REFERENCE_PATTERN}")}
    named |= {one.file for one in in_use}
    for path in (root / REFERENCE_FOLDER).glob("[0-9]*-e*.safetensors"):
        version, found_epoch = path.name.split("-")[:2]
        written = int(found_epoch.removeprefix("e"))
        is_now = written == epoch and all(int(version) >= one.version for one in in_use)
        if path.name in named or written > epoch or is_now:
            continue
        path.unlink(missing_ok=True)
