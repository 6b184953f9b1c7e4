"""The backend Fsdp, built from a job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from rljob_api.spec.roles import TrainerBackend
from rljob_workers.devices import own_device
from rljob_workers.models.building import described_config, model_config, torch_dtype
from rljob_workers.trainers.allocator import keep_freed_memory, return_freed_memory
from rljob_workers.trainers.backend import Backend, CriticBuilder
from rljob_workers.trainers.critic_version_0 import load_first_weights
from rljob_workers.trainers.fsdp.proof import require_right
from rljob_workers.trainers.fsdp.sharded_critic import FsdpCritic, backbone_width, build_sharded_critic
from rljob_workers.trainers.fsdp.sharded_forward import ShardedForward
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_sharded, build_whole, mesh_of
from rljob_workers.trainers.fsdp.sharded_trainer import FsdpModel, FsdpScoring
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

    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from rljob_api.names import Role
    from rljob_api.spec import RLJobSpec
    from rljob_workers.trainers.base import ForwardModel, Trainer
    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.mesh import Mesh
    from rljob_workers.trainers.optimizer_steps import TrainerConfig
    from rljob_workers.trainers.settings import CriticSettings


def _build(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, mesh: Mesh) -> Trainer:
    keep_freed_memory()
    options = replace(_training_options(spec), head_dtype=wide_head_dtype(spec))
    described = described_config(spec.model, tokenizer)
    require_right(described, packing=options.packing, has_wide_head=options.head_dtype is not None)
    model = build_sharded(model_config(described), options, mesh_of(mesh.gang, own_device()))
    return _trainer(FsdpModel, model, trainer_config(spec), options, mesh)


def _build_critic(settings: CriticSettings, spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, mesh: Mesh) -> Trainer:
    keep_freed_memory()
    options = _training_options(spec)
    described = described_config(spec.model, tokenizer)
    require_right(described, packing=options.packing)
    model = build_sharded_critic(model_config(described), options, mesh_of(mesh.gang, own_device()))
    return _trainer(FsdpCritic, model, critic_config(settings, spec), options, mesh)


def _load_critic(
    trainer: Trainer, settings: CriticSettings, spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, scratch: Path
) -> None:
    width = backbone_width(model_config(described_config(spec.model, tokenizer)))
    load_first_weights(trainer, settings, spec, tokenizer, width, scratch)


def _training_options(spec: RLJobSpec) -> ModelOptions:
    checkpointing = spec.training.activation_checkpointing
    return ModelOptions(
        storage=torch.float32,
        compute=torch_dtype(spec.model.dtype),
        packing=spec.training.packing,
        activation_checkpointing=checkpointing is None or checkpointing,
        device=str(own_device()),
    )


def _trainer(
    kind: type[FsdpModel],
    model: PreTrainedModel,
    config: TrainerConfig,
    options: ModelOptions,
    mesh: Mesh,
) -> Trainer:
    trained = kind(
        model,
        config.optimizer,
        mesh.gang,
        num_totals=step_totals(config, mesh).size,
        dtype=config.dtype,
        packing=options.packing,
        device=own_device(),
    )
    return ModelTrainer(trained, config, mesh)


def _forward_model(
    spec: RLJobSpec,
    tokenizer: PreTrainedTokenizerBase,
    role: Role,  # noqa: ARG001 -- one signature
    gang: DataParallelGroup,
) -> ForwardModel:
    config, options = _forward_options(spec, tokenizer)
    limits = micro_batch_limits(spec.training)
    if gang.world == 1:
        keep_freed_memory()
        return ModelForward(FsdpScoring(build_whole(config, options), packing=options.packing), limits)
    return_freed_memory()
    model = build_sharded(config, options, mesh_of(gang, own_device())).requires_grad_(False)
    return ShardedForward(model, gang, limits, packing=options.packing)


def _forward_options(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase) -> tuple[PretrainedConfig, ModelOptions]:
    dtype, packing = torch_dtype(spec.model.dtype), spec.training.packing
    options = ModelOptions(
        storage=dtype, compute=dtype, packing=packing, head_dtype=wide_head_dtype(spec), device=str(own_device())
    )
    described = described_config(spec.model, tokenizer)
    require_right(described, packing=packing, has_wide_head=options.head_dtype is not None)
    return model_config(described), options


BACKEND = Backend(
    TrainerBackend.FSDP,
    _build,
    _forward_model,
    initial_weights,
    some_initial_weights,
    reads_folders=True,
    critic=CriticBuilder(_build_critic, _load_critic),
    preload=(
        "torch.distributed.device_mesh",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "transformers.generation.utils",
        "transformers.masking_utils",
        "transformers.modeling_utils",
        "transformers.models.auto.modeling_auto",
    ),
)
