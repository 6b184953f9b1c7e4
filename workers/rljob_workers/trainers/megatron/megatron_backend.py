"""The backend Megatron, built from a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_api.model_files.parallel_layout import experts_problem, layout_problem, recomputed_problem
from rljob_api.roles import LEADING_ROLE, TRAITS, VALUE_ROLE, field_name
from rljob_api.spec.experts import Balancing
from rljob_api.spec.restart import collective_seconds
from rljob_api.spec.roles import TrainerBackend
from rljob_workers.devices import own_device
from rljob_workers.models.building import described_config, model_config, torch_dtype
from rljob_workers.trainers.allocator import keep_freed_memory
from rljob_workers.trainers.backend import Backend, CriticBuilder
from rljob_workers.trainers.critic_version_0 import load_first_weights
from rljob_workers.trainers.megatron.balance import Balance
from rljob_workers.trainers.megatron.decoder import Decoder, DecoderOptions
from rljob_workers.trainers.megatron.groups import mesh_of
from rljob_workers.trainers.megatron.megatron_model import MegatronCritic, MegatronModel, MegatronScoring
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
    from rljob_api.spec.experts import ExpertsSpec
    from rljob_api.spec.parallelism import ParallelismSpec
    from rljob_workers.trainers.base import ForwardModel, Trainer
    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.mesh import Mesh
    from rljob_workers.trainers.settings import CriticSettings


def _mesh(spec: RLJobSpec, role: Role, gang: DataParallelGroup) -> Mesh:
    return mesh_of(spec.parallelism_of(role), gang)


def _build(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, mesh: Mesh) -> Trainer:
    config = trainer_config(spec)
    decoder = _decoder(spec, tokenizer, LEADING_ROLE, mesh.gang)
    model = MegatronModel(decoder, config.optimizer, mesh, num_totals=step_totals(config, mesh).size)
    return ModelTrainer(model, config, mesh)


def _build_critic(settings: CriticSettings, spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, mesh: Mesh) -> Trainer:
    config = critic_config(settings, spec)
    decoder = _decoder(spec, tokenizer, VALUE_ROLE, mesh.gang)
    model = MegatronCritic(decoder, config.optimizer, mesh, num_totals=step_totals(config, mesh).size)
    return ModelTrainer(model, config, mesh)


def _load_critic(
    trainer: Trainer, settings: CriticSettings, spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, scratch: Path
) -> None:
    width = model_config(described_config(spec.model, tokenizer)).hidden_size
    load_first_weights(trainer, settings, spec, tokenizer, width, scratch)


def _forward_model(
    spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, role: Role, gang: DataParallelGroup
) -> ForwardModel:
    decoder = _decoder(spec, tokenizer, role, gang)
    for chunk in decoder.chunks:
        chunk.requires_grad_(False)
    return ModelForward(MegatronScoring(decoder, decoder.chunks), micro_batch_limits(spec.training), gang)


def _balance(experts: ExpertsSpec | None) -> Balance:
    if experts is None:
        return Balance()
    return Balance(
        by_row=experts.balancing is Balancing.SEQ_AUX_LOSS,
        aux_coefficient=experts.aux_loss_coefficient or 0.0,
        z_coefficient=experts.z_loss_coefficient or 0.0,
    )


_BUCKET = 40_000_000
"""Megatron's own."""


def _exchanges_early(parallelism: ParallelismSpec, gang: DataParallelGroup) -> bool:
    """Where ranks have gradients of the same weights, and a device goes on computing while they are exchanged."""
    return own_device().type == "cuda" and gang.world > parallelism.tensor * parallelism.pipeline


def _decoder(
    spec: RLJobSpec,
    tokenizer: PreTrainedTokenizerBase,
    role: Role,
    gang: DataParallelGroup,
) -> Decoder:
    keep_freed_memory()
    described, parallelism = described_config(spec.model, tokenizer), spec.parallelism_of(role)
    problem = layout_problem(described, parallelism)
    if problem is not None:
        raise ValueError(f"roles.{field_name(role)}.{problem}")
    trains = TRAITS[role].saves
    experts = spec.training.experts if trains else None
    recomputed = spec.training.recompute_modules or [] if trains else []
    problem = (experts_problem(described) if experts else None) or recomputed_problem(described, recomputed)
    if problem is not None:
        raise ValueError(problem)
    options = DecoderOptions(
        parallelism,
        dtype=torch_dtype(spec.model.dtype),
        head_dtype=wide_head_dtype(spec),
        has_value_head=role is VALUE_ROLE,
        balance=_balance(experts),
        recomputes=bool(spec.training.activation_checkpointing),
        recomputed=recomputed,
        bucket=_BUCKET if trains and _exchanges_early(parallelism, gang) else None,
        timeout_seconds=collective_seconds(spec.restart_policy),
    )
    return Decoder(model_config(described), options, gang)


BACKEND = Backend(
    TrainerBackend.MEGATRON,
    _build,
    _forward_model,
    initial_weights,
    some_initial_weights,
    mesh=_mesh,
    reads_folders=True,
    critic=CriticBuilder(_build_critic, _load_critic),
    preload=(
        "megatron.core.distributed",
        "megatron.core.models.gpt.gpt_layer_specs",
        "megatron.core.models.gpt.gpt_model",
        "megatron.core.optimizer",
        "megatron.core.pipeline_parallel",
        "rljob_workers.trainers.megatron.routers",
        "torch.optim.adamw",
        "transformers.models.auto.modeling_auto",
        "transformers.models.llama.modeling_llama",
    ),
)
