"""The first weights of a critic that is a model: a reward model's, or a policy's with a new head.

For the backends whose critics are models. What is not read of a policy is its language head.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_workers.models.blob import WEIGHTS_FILE, write_blob
from rljob_workers.models.building import weight_files
from rljob_workers.models.value_head import new_value_head, require_value_head
from rljob_workers.models.weight_source import Folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from rljob_workers.trainers.base import Trainer

HEAD_FILE = "model-value-head.safetensors"
"""Read with the others, as a part of the model."""


def load_reward_model(trainer: Trainer, folder: Path) -> None:
    """All weights of a folder that has a value head; ValueError, with the cure, for another one."""
    require_value_head(folder)
    trainer.load(Folder(folder))


def load_policy(trainer: Trainer, state: Mapping[str, torch.Tensor], width: int, scratch: Path) -> None:
    """The tensors of a policy of hidden size `width`, and a new head."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        write_blob(Path(name) / WEIGHTS_FILE, {**state, **new_value_head(width)})
        trainer.load(Folder(Path(name)))


def load_policy_folder(trainer: Trainer, policy: Path, width: int, scratch: Path) -> None:
    """The weights in a policy's folder, of which each rank reads what it holds, and a new head."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        for file in weight_files(policy):
            (folder / file.name).symlink_to(file.resolve())
        write_blob(folder / HEAD_FILE, new_value_head(width))
        trainer.load(Folder(folder))
