"""A rank's part of a checkpoint, written as the checkpoint store does it, without a coordinator."""

from __future__ import annotations

from pathlib import Path

from rljob_workers.models.blob import part_file, write_blob
from rljob_workers.models.slices import state_files
from rljob_workers.trainers.base import Trainer


def save_part(trainer: Trainer, rank: int, folder: Path, role: str = "actor") -> None:
    """A collective, as staging weights is."""
    folder.mkdir(exist_ok=True)
    share, staged = trainer.weight_share, trainer.stage_weights()
    assert (share is not None) == bool(staged)
    if share is not None:
        write_blob(folder / part_file(share.index, share.count), staged)
    tensors, description = state_files(role, rank)
    state = trainer.stage_state()
    write_blob(folder / tensors, state.tensors())
    (folder / description).write_bytes(state.description())
