"""Where a run's checkpoints lie: in its folder, or elsewhere, where another run may have its own.

Called by `run_folder` at a start. A folder elsewhere is locked as long as the run uses it and remembers whose
checkpoints it has: the run that comes later deletes what its records make superfluous, so both must be one.
"""

import fcntl
import os
from pathlib import Path
from typing import TextIO

from rljob_api.run_identity import run_digest
from rljob_api.spec import RLJobSpec
from rljob_operator.local.errors import RunRefused
from rljob_operator.local.run_record import LOCK, CheckpointOwner, RunRecord, checkpoint_folder


def lock_checkpoints(path: Path, spec: RLJobSpec) -> TextIO | None:
    """Makes the folder of the checkpoints of the run in the folder `path`; its lock where it lies elsewhere.

    Raises RunRefused where it cannot be written or is in use.
    """
    folder = path / checkpoint_folder(path, spec)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(0, "no right to write there")
        return None if folder.is_relative_to(path) else _locked(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error


def refuse_anothers(path: Path, spec: RLJobSpec, before: RunRecord) -> None:
    """Refuses what `own_checkpoints` would refuse once the run `before`, whose folder is `path`, is cleared away."""
    folder = path / checkpoint_folder(path, spec)
    owner = None if folder.is_relative_to(path) else CheckpointOwner.of(folder)
    if owner is not None and not owner.is_run(before.run, path) and owner.digest != run_digest(spec):
        raise _of_another(folder, owner)


def own_checkpoints(path: Path, spec: RLJobSpec, run: str) -> None:
    """Notes in a locked folder whose checkpoints it has. Raises RunRefused where they are another run's."""
    folder = path / checkpoint_folder(path, spec)
    if folder.is_relative_to(path):
        return
    owner, digest = CheckpointOwner.of(folder), run_digest(spec)
    has_begun = (path / "status.json").exists()
    if owner is not None and (
        _is_copy(path, owner, run) or (owner.run != run and (has_begun or owner.digest != digest))
    ):
        raise _of_another(folder, owner)
    try:
        CheckpointOwner(run=run, out=str(path), digest=digest).write(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _locked(folder: Path) -> TextIO:
    lock = (folder / LOCK).open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise RunRefused(
            f"spec.checkpoint.path: {folder} is in use by another run. Give each run a folder of its own."
        ) from None
    return lock


def _unwritable(folder: Path, error: OSError) -> RunRefused:
    return RunRefused(f"spec.checkpoint.path: {folder} cannot be written ({error.strerror}). Give one that can be.")


def _of_another(folder: Path, owner: CheckpointOwner) -> RunRefused:
    return RunRefused(
        f"spec.checkpoint.path: {folder} has the checkpoints of another run, whose folder is {owner.out}. Give"
        " another folder; to begin with its weights, set model.path to its last checkpoint."
    )


def _is_copy(path: Path, owner: CheckpointOwner, run: str) -> bool:
    """Whether the run folder `path` was copied from one that is still there: both would write these checkpoints."""
    if owner.run != run or owner.is_run(run, path):
        return False
    original = RunRecord.read(Path(owner.out))
    return original is not None and original.run == run
