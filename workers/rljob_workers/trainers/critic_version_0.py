"""The first weights of a critic that is a model: a reward model's, or a policy's with a new head.

For the backends whose critics are models. What is not read of a policy is its language head.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.machine.room import named_room
from rljob_workers.models.blob import WEIGHTS_FILE, write_blob
from rljob_workers.models.building import weight_files
from rljob_workers.models.value_head import new_value_head, require_value_head
from rljob_workers.models.weights import Folder
from rljob_workers.trainers.settings import initial_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from transformers import PreTrainedTokenizerBase

    from rljob_api.spec import RLJobSpec
    from rljob_workers.trainers.base import Trainer
    from rljob_workers.trainers.settings import CriticSettings

HEAD_FILE = "model-value-head.safetensors"
"""Read with the others, as a part of the model."""


def load_reward_model(trainer: Trainer, folder: Path) -> None:
    """All weights of a folder that has a value head; ValueError, with the cure, for another one."""
    require_value_head(folder)
    trainer.load(Folder(folder))


def load_first_weights(
    trainer: Trainer,
    settings: CriticSettings,
    spec: RLJobSpec,
    tokenizer: PreTrainedTokenizerBase,
    width: int,
    scratch: Path,
) -> None:
    """Of a backend that reads folders: a reward model's, else the policy's, of hidden size `width`, and a new head."""
    if settings.model_path is not None:
        load_reward_model(trainer, settings.model_path)
    elif spec.model.path is not None:
        load_policy_folder(trainer, Path(spec.model.path), width, scratch)
    else:
        load_policy(trainer, initial_weights(spec, tokenizer), width, scratch)


def load_policy(trainer: Trainer, state: Mapping[str, torch.Tensor], width: int, scratch: Path) -> None:
    """The tensors of a policy of hidden size `width`, and a new head."""
    with named_room(scratch, "version 0 of the critic"), tempfile.TemporaryDirectory(dir=scratch) as name:
        write_blob(Path(name) / WEIGHTS_FILE, {**state, **new_value_head(width)})
        trainer.load(Folder(Path(name)))


def load_policy_folder(trainer: Trainer, policy: Path, width: int, scratch: Path) -> None:
    """The weights in a policy's folder, of which each rank reads what it holds, and a new head."""
    with named_room(scratch, "version 0 of the critic"), tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        for file in weight_files(policy):
            (folder / file.name).symlink_to(file.resolve())
        write_blob(folder / HEAD_FILE, new_value_head(width))
        trainer.load(Folder(folder))
