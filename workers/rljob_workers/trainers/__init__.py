"""Trainers and forward models: the factories. Which backend there is stands here and nowhere else.

Called by the assembly of actor, actor_fwd and reference. Built from a config the weights are not set: `load` or
`restore` comes next, since version 0 is materialised once, as checkpoint 0.
"""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rljob_api.roles import LEADING_ROLE
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import TrainerBackend
from rljob_api.spec.simulation import SimulationSpec
from rljob_api.spec.training import OptimizerSpec, Schedule, TrainingSpec
from rljob_workers.devices import own_device
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import (
    build_config,
    described_config,
    initial_state,
    initial_tensors,
    stored_weights,
    torch_dtype,
)
from rljob_workers.simulation.pace import SimulatedPace
from rljob_workers.simulation.policy import tensors_of, version_0
from rljob_workers.trainers import optimizer_steps
from rljob_workers.trainers.flat_model import FlatModel, FlatScoring
from rljob_workers.trainers.fsdp.proof import require_right
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_sharded, build_whole, mesh_of, model_config
from rljob_workers.trainers.fsdp.sharded_trainer import FsdpModel, FsdpScoring
from rljob_workers.trainers.micro_batches import MicroBatchLimits
from rljob_workers.trainers.model_trainer import ModelForward, ModelTrainer, step_totals
from rljob_workers.trainers.objectives import policy_objective
from rljob_workers.trainers.optimizer_steps import AdamWConfig, LearningRate, TrainerConfig
from rljob_workers.trainers.sim_trainer import SimForward, SimForwardModel, SimTrainer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from transformers import PreTrainedTokenizerBase

    from rljob_workers.simulation.policy import Uints
    from rljob_workers.trainers.base import ForwardModel, Trainer
    from rljob_workers.trainers.data_parallel import DataParallelGroup


_M_TRIM_THRESHOLD = -1


_M_MMAP_THRESHOLD = -3


_LARGEST_HEAP_BLOCK = 1 << 30
"""Blocks from 1 GiB on are mapped as before: keeping those would hold too much."""


_NEVER_TRIM = (1 << 31) - 1
"""The largest value that the C interface (an int) takes."""


def keep_freed_memory() -> None:
    """Raises glibc's thresholds for mapping and trimming."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_HEAP_BLOCK)
    mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM)


_FADES = {
    Schedule.CONSTANT: optimizer_steps.constant,
    Schedule.LINEAR: optimizer_steps.linear,
    Schedule.COSINE: optimizer_steps.cosine,
}


def build_trainer(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, group: DataParallelGroup) -> Trainer:
    """The actor's trainer; `group` is `data_parallel.SingleRank()` where the actor has one rank."""
    if spec.trainer_backend is TrainerBackend.SIM:
        return _build_simulated_trainer(spec, tokenizer, group)
    keep_freed_memory()
    if spec.trainer_backend is TrainerBackend.FSDP:
        return _build_sharded_trainer(spec, tokenizer, group)
    config = trainer_config(spec)
    model = FlatModel(
        build_config(spec.model, tokenizer),
        config.optimizer,
        group,
        num_totals=step_totals(config, group).size,
        dtype=config.dtype,
        head_dtype=_wide_head_dtype(spec),
        device=own_device(),
    )
    return ModelTrainer(model, config, group)


def load_version_0(trainer: Trainer, spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, scratch: Path) -> None:
    """Version 0 into a trainer, the same on every rank: from the model's folder, or random by its seed.

    A sharded trainer reads its rows of the folder itself. `scratch` is a folder of this machine.
    """
    if spec.trainer_backend is TrainerBackend.FSDP and spec.model.path is not None:
        stored_weights(Path(spec.model.path))  # its error names what is missing in the folder
        trainer.load(Path(spec.model.path))
        return
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        blob = Path(folder) / "version-0.safetensors"
        write_blob(blob, _version_0(spec, tokenizer))
        trainer.load(blob)


def tensors_of_version_0(
    spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, names: Collection[str]
) -> Mapping[str, torch.Tensor]:
    """Some tensors of version 0, made again."""
    if spec.trainer_backend is TrainerBackend.SIM:
        state = _version_0(spec, tokenizer)
        return {name: state[name] for name in names}
    return initial_tensors(spec.model, tokenizer, names)


def _version_0(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase) -> Mapping[str, torch.Tensor]:
    if spec.trainer_backend is TrainerBackend.SIM:
        return tensors_of(_simulated_weights(spec))
    return initial_state(spec.model, tokenizer)


def _simulated_weights(spec: RLJobSpec) -> Uints:
    return version_0(0 if spec.model.config is None else spec.model.config.seed)


def _simulated_forward(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase) -> SimForward:
    settings = spec.simulation or SimulationSpec()
    vocabulary = described_config(spec.model, tokenizer)["vocab_size"]
    return SimForward(vocabulary, micro_batch_limits(spec.training), SimulatedPace(settings.log_probs, settings.speed))


def _build_simulated_trainer(
    spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, group: DataParallelGroup
) -> SimTrainer:
    settings = spec.simulation or SimulationSpec()
    return SimTrainer(
        _simulated_forward(spec, tokenizer),
        SimulatedPace(settings.training, settings.speed),
        group,
        _simulated_weights(spec),
        max_skipped_steps=spec.training.max_skipped_steps,
    )


def _build_sharded_trainer(
    spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, group: DataParallelGroup
) -> ModelTrainer:
    device = own_device()
    packing = spec.training.packing
    checkpointing = spec.training.activation_checkpointing
    options = ModelOptions(
        storage=torch.float32,
        compute=torch_dtype(spec.model.dtype),
        packing=packing,
        head_dtype=_wide_head_dtype(spec),
        activation_checkpointing=checkpointing is None or checkpointing,
        device=str(device),
    )
    described = described_config(spec.model, tokenizer)
    require_right(described, packing=packing, has_wide_head=options.head_dtype is not None)
    model = build_sharded(model_config(described), options, mesh_of(group, device))
    config = trainer_config(spec)
    trained = FsdpModel(
        model,
        config.optimizer,
        group,
        num_totals=step_totals(config, group).size,
        dtype=config.dtype,
        packing=packing,
        device=device,
    )
    return ModelTrainer(trained, config, group)


def _build_whole_model(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase) -> ModelForward:
    dtype, packing = torch_dtype(spec.model.dtype), spec.training.packing
    options = ModelOptions(
        storage=dtype, compute=dtype, packing=packing, head_dtype=_wide_head_dtype(spec), device=str(own_device())
    )
    described = described_config(spec.model, tokenizer)
    require_right(described, packing=packing, has_wide_head=options.head_dtype is not None)
    model = build_whole(model_config(described), options)
    return ModelForward(FsdpScoring(model, packing=packing), micro_batch_limits(spec.training))


def build_forward_model(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase) -> ForwardModel:
    """The model of actor_fwd or of the reference."""
    if spec.trainer_backend is TrainerBackend.SIM:
        return SimForwardModel(_simulated_forward(spec, tokenizer), _simulated_weights(spec))
    keep_freed_memory()
    if spec.trainer_backend is TrainerBackend.FSDP:
        return _build_whole_model(spec, tokenizer)
    model = FlatScoring(
        build_config(spec.model, tokenizer),
        dtype=torch_dtype(spec.model.dtype),
        head_dtype=_wide_head_dtype(spec),
        device=own_device(),
    )
    return ModelForward(model, micro_batch_limits(spec.training))


def _wide_head_dtype(spec: RLJobSpec) -> torch.dtype | None:
    """Of logits, where it is another one than that of the model."""
    wanted = spec.head_dtype
    return None if wanted is spec.model.dtype else torch_dtype(wanted)


def trainer_config(spec: RLJobSpec) -> TrainerConfig:
    """The trainer's slice of the job."""
    return TrainerConfig(
        dtype=torch_dtype(spec.model.dtype),
        limits=micro_batch_limits(spec.training),
        temperature=spec.rollout.sampling.temperature,
        objective=policy_objective(spec.algorithm),
        optimizer=optimizer_config(spec.training.optimizer, total_steps(spec)),
        max_skipped_steps=spec.training.max_skipped_steps,
        norm_multiple=10.0 if spec.training.norm_multiple is None else spec.training.norm_multiple,
        role=LEADING_ROLE.value,
    )


def micro_batch_limits(training: TrainingSpec) -> MicroBatchLimits:
    """What one forward and backward pass takes."""
    return MicroBatchLimits(training.micro_batch_size, training.max_tokens_per_micro_batch)


def total_steps(spec: RLJobSpec) -> int:
    """Optimizer steps of the whole job."""
    rollout, training = spec.rollout, spec.training
    steps = rollout.batch_size * rollout.samples_per_prompt // training.global_batch_size
    return rollout.num_rollouts * steps * training.epochs_per_rollout


def optimizer_config(optimizer: OptimizerSpec, steps: int) -> AdamWConfig:
    """The optimizer's settings in a job of so many optimizer steps."""
    return AdamWConfig(
        learning_rate=LearningRate(
            optimizer.learning_rate,
            optimizer.min_learning_rate,
            _FADES[optimizer.schedule],
            optimizer.warmup_steps,
            steps,
        ),
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        epsilon=optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
    )
