"""The backend Sim, built from a job."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.roles import LEADING_ROLE, VALUE_ROLE
from rljob_api.spec.roles import TrainerBackend
from rljob_api.spec.simulation import SimulationSpec
from rljob_workers.models.blob import WEIGHTS_FILE, write_blob
from rljob_workers.models.building import described_config
from rljob_workers.models.weights import Folder
from rljob_workers.simulation.pace import SimulatedPace
from rljob_workers.simulation.policy import tensors_of, version_0
from rljob_workers.tensors.columns import Column
from rljob_workers.trainers.backend import Backend, CriticBuilder
from rljob_workers.trainers.settings import micro_batch_limits
from rljob_workers.trainers.sim_trainer import (
    VALUE_HEAD,
    SimForward,
    SimForwardModel,
    SimHead,
    SimLearning,
    SimTrainer,
    policy_head,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch
    from transformers import PreTrainedTokenizerBase

    from rljob_api.names import Role
    from rljob_api.spec import RLJobSpec
    from rljob_workers.simulation.policy import Uints
    from rljob_workers.tensors.jagged import Jagged
    from rljob_workers.trainers.base import ForwardModel, Trainer
    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.mesh import Mesh
    from rljob_workers.trainers.settings import CriticSettings


def _policy_losses(columns: Mapping[Column, Jagged]) -> torch.Tensor:
    return -columns[Column.ADVANTAGES].values.float()


POLICY = SimLearning(LEADING_ROLE.value, (Column.ADVANTAGES, Column.ROLLOUT_LOG_PROBS), _policy_losses)


def _critic_losses(columns: Mapping[Column, Jagged]) -> torch.Tensor:
    return (columns[Column.VALUES].values.float() - columns[Column.RETURNS].values.float()).square() / 2


OF_CRITIC = SimLearning(VALUE_ROLE.value, (Column.RETURNS, Column.VALUES), _critic_losses)


def _build(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, mesh: Mesh) -> Trainer:
    return _trainer(spec, _policy(spec, tokenizer), POLICY, mesh)


def _build_critic(
    settings: CriticSettings,  # noqa: ARG001 - one signature
    spec: RLJobSpec,
    tokenizer: PreTrainedTokenizerBase,  # noqa: ARG001 - one signature
    mesh: Mesh,
) -> Trainer:
    return _trainer(spec, VALUE_HEAD, OF_CRITIC, mesh)


def _load_critic(
    trainer: Trainer,
    settings: CriticSettings,  # noqa: ARG001 - one signature
    spec: RLJobSpec,
    tokenizer: PreTrainedTokenizerBase,  # noqa: ARG001 - one signature
    scratch: Path,
) -> None:
    """The policy's, whose values are another hash. Of a reward model's folder nothing is read, as of a policy's."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        write_blob(Path(folder) / WEIGHTS_FILE, tensors_of(_weights(spec)))
        trainer.load(Folder(Path(folder)))


def _trainer(spec: RLJobSpec, head: SimHead, learning: SimLearning, mesh: Mesh) -> Trainer:
    settings = spec.simulation or SimulationSpec()
    return SimTrainer(
        _forward(spec, head),
        SimulatedPace(settings.training, settings.speed),
        mesh,
        _weights(spec),
        learning,
        max_skipped_steps=spec.training.max_skipped_steps,
    )


def _forward_model(
    spec: RLJobSpec,
    tokenizer: PreTrainedTokenizerBase,
    role: Role,  # noqa: ARG001 -- one signature
    gang: DataParallelGroup,  # noqa: ARG001 -- a rank has a whole model
) -> ForwardModel:
    return SimForwardModel(_forward(spec, _policy(spec, tokenizer)), _weights(spec))


def _version_0(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase) -> Mapping[str, torch.Tensor]:  # noqa: ARG001 - one signature
    return tensors_of(_weights(spec))


def _some_of_version_0(
    spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, names: Collection[str]
) -> Mapping[str, torch.Tensor]:
    state = _version_0(spec, tokenizer)
    return {name: state[name] for name in names}


def _weights(spec: RLJobSpec) -> Uints:
    return version_0(0 if spec.model.config is None else spec.model.config.seed)


def _policy(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase) -> SimHead:
    return policy_head(described_config(spec.model, tokenizer)["vocab_size"])


def _forward(spec: RLJobSpec, head: SimHead) -> SimForward:
    settings = spec.simulation or SimulationSpec()
    return SimForward(head, micro_batch_limits(spec.training), SimulatedPace(settings.log_probs, settings.speed))


BACKEND = Backend(
    TrainerBackend.SIM,
    _build,
    _forward_model,
    _version_0,
    _some_of_version_0,
    critic=CriticBuilder(_build_critic, _load_critic),
)
