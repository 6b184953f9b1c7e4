"""The backend Flat, built from a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_api.spec.roles import TrainerBackend
from rljob_workers.devices import own_device
from rljob_workers.models.building import build_config, torch_dtype
from rljob_workers.trainers.allocator import keep_freed_memory
from rljob_workers.trainers.backend import Backend
from rljob_workers.trainers.flat_model import FlatModel, FlatScoring
from rljob_workers.trainers.model_trainer import ModelForward, ModelTrainer, step_totals
from rljob_workers.trainers.settings import (
    initial_weights,
    micro_batch_limits,
    some_initial_weights,
    trainer_config,
    wide_head_dtype,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rljob_api.spec import RLJobSpec
    from rljob_workers.trainers.base import ForwardModel, Trainer
    from rljob_workers.trainers.data_parallel import DataParallelGroup


def _build(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, group: DataParallelGroup) -> Trainer:
    keep_freed_memory()
    config = trainer_config(spec)
    model = FlatModel(
        build_config(spec.model, tokenizer),
        config.optimizer,
        group,
        num_totals=step_totals(config, group).size,
        dtype=config.dtype,
        head_dtype=wide_head_dtype(spec),
        device=own_device(),
    )
    return ModelTrainer(model, config, group)


def _forward_model(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase) -> ForwardModel:
    keep_freed_memory()
    model = FlatScoring(
        build_config(spec.model, tokenizer),
        dtype=torch_dtype(spec.model.dtype),
        head_dtype=wide_head_dtype(spec),
        device=own_device(),
    )
    return ModelForward(model, micro_batch_limits(spec.training))


BACKEND = Backend(TrainerBackend.FLAT, _build, _forward_model, initial_weights, some_initial_weights)
