"""The backend Flat, built from a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_api.spec.roles import TrainerBackend
from rljob_workers.algorithms.objective import Output
from rljob_workers.devices import own_device
from rljob_workers.models.building import build_config, torch_dtype
from rljob_workers.trainers.allocator import keep_freed_memory
from rljob_workers.trainers.backend import Backend, CriticBuilder
from rljob_workers.trainers.critic_version_0 import load_policy, load_reward_model
from rljob_workers.trainers.flat_critic import FlatCritic
from rljob_workers.trainers.flat_entropy import FlatEntropyModel
from rljob_workers.trainers.flat_model import FlatModel, FlatScoring
from rljob_workers.trainers.model_trainer import ModelForward, ModelTrainer, step_totals
from rljob_workers.trainers.settings import (
    critic_config,
    initial_weights,
    micro_batch_limits,
    some_initial_weights,
    trainer_config,
    wide_head_dtype,
)

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from rljob_api.names import Role
    from rljob_api.spec import RLJobSpec
    from rljob_workers.trainers.base import ForwardModel, Trainer
    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.mesh import Mesh
    from rljob_workers.trainers.settings import CriticSettings


def _build(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, mesh: Mesh) -> Trainer:
    keep_freed_memory()
    config = trainer_config(spec)
    kind = FlatEntropyModel if Output.ENTROPY in config.objective.needs_outputs else FlatModel
    model = kind(
        build_config(spec.model, tokenizer),
        config.optimizer,
        mesh.gang,
        num_totals=step_totals(config, mesh).size,
        dtype=config.dtype,
        head_dtype=wide_head_dtype(spec),
        device=own_device(),
    )
    return ModelTrainer(model, config, mesh)


def _forward_model(
    spec: RLJobSpec,
    tokenizer: PreTrainedTokenizerBase,
    role: Role,  # noqa: ARG001 -- one signature
    gang: DataParallelGroup,  # noqa: ARG001 -- a rank has a whole model
) -> ForwardModel:
    keep_freed_memory()
    model = FlatScoring(
        build_config(spec.model, tokenizer),
        dtype=torch_dtype(spec.model.dtype),
        head_dtype=wide_head_dtype(spec),
        device=own_device(),
    )
    return ModelForward(model, micro_batch_limits(spec.training))


def _build_critic(settings: CriticSettings, spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, mesh: Mesh) -> Trainer:
    keep_freed_memory()
    config = critic_config(settings, spec)
    model = FlatCritic(
        build_config(spec.model, tokenizer),
        config.optimizer,
        mesh.gang,
        num_totals=step_totals(config, mesh).size,
        dtype=config.dtype,
        device=own_device(),
    )
    return ModelTrainer(model, config, mesh)


def _load_critic(
    trainer: Trainer, settings: CriticSettings, spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, scratch: Path
) -> None:
    if settings.model_path is not None:
        load_reward_model(trainer, settings.model_path)
        return
    width = build_config(spec.model, tokenizer).hidden_size
    load_policy(trainer, initial_weights(spec, tokenizer), width, scratch)


BACKEND = Backend(
    TrainerBackend.FLAT,
    _build,
    _forward_model,
    initial_weights,
    some_initial_weights,
    critic=CriticBuilder(_build_critic, _load_critic),
)
