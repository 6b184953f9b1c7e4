"""Trainers and forward models: the factories. Which backend there is stands here and nowhere else.

Called by the assembly of actor, critic, actor_fwd and reference. Built from a config the weights are not set: `load` or
`restore` comes next, since version 0 is materialised once, as checkpoint 0.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.machine.room import named_room
from rljob_api.roles import LEADING_ROLE, VALUE_ROLE
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import stored_weights
from rljob_workers.models.weights import Folder
from rljob_workers.trainers import flat_backend, sim_backend
from rljob_workers.trainers.fsdp import fsdp_backend
from rljob_workers.trainers.megatron import megatron_backend

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch
    from transformers import PreTrainedTokenizerBase

    from rljob_api.names import Role
    from rljob_api.spec import RLJobSpec
    from rljob_api.spec.roles import TrainerBackend
    from rljob_workers.trainers.backend import Backend, CriticBuilder
    from rljob_workers.trainers.base import ForwardModel, Trainer
    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.settings import CriticSettings

TRAINERS: Mapping[TrainerBackend, Backend] = {
    backend.kind: backend
    for backend in (flat_backend.BACKEND, fsdp_backend.BACKEND, megatron_backend.BACKEND, sim_backend.BACKEND)
}


def build_trainer(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, group: DataParallelGroup) -> Trainer:
    """The actor's trainer; `group` is `data_parallel.SingleRank()` where the actor has one rank."""
    backend = TRAINERS[spec.trainer_backend]
    return backend.build(spec, tokenizer, backend.mesh(spec, LEADING_ROLE, group))


def build_forward_model(
    spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, role: Role, gang: DataParallelGroup
) -> ForwardModel:
    """The model of actor_fwd or of the reference, `role`: this rank's part, where its gang holds one together."""
    return TRAINERS[spec.backend_of(role)].forward_model(spec, tokenizer, role, gang)


def load_version_0(trainer: Trainer, spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, scratch: Path) -> None:
    """Version 0 into a trainer, the same on every rank: from the model's folder, or random by its seed.

    `scratch` is a folder of this machine.
    """
    backend = TRAINERS[spec.trainer_backend]
    if backend.reads_folders and spec.model.path is not None:
        stored_weights(Path(spec.model.path))  # its error names what is missing in the folder
        trainer.load(Folder(Path(spec.model.path)))
        return
    with named_room(scratch, "version 0 of the model"), tempfile.TemporaryDirectory(dir=scratch) as folder:
        blob = Path(folder) / "version-0.safetensors"
        write_blob(blob, backend.version_0(spec, tokenizer))
        trainer.load(Folder(blob))


def build_critic(
    settings: CriticSettings, spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, group: DataParallelGroup
) -> Trainer:
    """The critic's trainer, which scores `Output.VALUES`; `group` as of `build_trainer`, of the critic's ranks."""
    mesh = TRAINERS[settings.backend].mesh(spec, VALUE_ROLE, group)
    return _critics(settings).build(settings, settings.of_its_model(spec), tokenizer, mesh)


def load_critic_version_0(
    trainer: Trainer,
    settings: CriticSettings,
    spec: RLJobSpec,
    tokenizer: PreTrainedTokenizerBase,
    scratch: Path,
) -> None:
    """The first weights into a critic's trainer: a reward model's, or the policy's version 0 with a new head.

    ValueError, with the cure, for a folder that is no reward model's. `scratch` is a folder of this machine.
    """
    _critics(settings).load_version_0(trainer, settings, settings.of_its_model(spec), tokenizer, scratch)


def _critics(settings: CriticSettings) -> CriticBuilder:
    builder = TRAINERS[settings.backend].critic
    if builder is None:
        names = ", ".join(kind.value for kind, backend in TRAINERS.items() if backend.critic is not None)
        raise ValueError(f"critic: the backend {settings.backend.value} trains none. Choose one of {names}.")
    return builder


def tensors_of_version_0(
    spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, names: Collection[str]
) -> Mapping[str, torch.Tensor]:
    """Some tensors of version 0, made again."""
    return TRAINERS[spec.trainer_backend].some_of_version_0(spec, tokenizer, names)
