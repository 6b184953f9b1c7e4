"""The backend Sim, built from a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_api.spec.roles import TrainerBackend
from rljob_api.spec.simulation import SimulationSpec
from rljob_workers.models.building import described_config
from rljob_workers.simulation.pace import SimulatedPace
from rljob_workers.simulation.policy import tensors_of, version_0
from rljob_workers.trainers.backend import Backend
from rljob_workers.trainers.settings import micro_batch_limits
from rljob_workers.trainers.sim_trainer import SimForward, SimForwardModel, SimTrainer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch
    from transformers import PreTrainedTokenizerBase

    from rljob_api.spec import RLJobSpec
    from rljob_workers.simulation.policy import Uints
    from rljob_workers.trainers.base import ForwardModel, Trainer
    from rljob_workers.trainers.data_parallel import DataParallelGroup


def _build(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, group: DataParallelGroup) -> Trainer:
    settings = spec.simulation or SimulationSpec()
    return SimTrainer(
        _forward(spec, tokenizer),
        SimulatedPace(settings.training, settings.speed),
        group,
        _weights(spec),
        max_skipped_steps=spec.training.max_skipped_steps,
    )


def _forward_model(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase) -> ForwardModel:
    return SimForwardModel(_forward(spec, tokenizer), _weights(spec))


def _version_0(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase) -> Mapping[str, torch.Tensor]:  # noqa: ARG001 - one signature
    return tensors_of(_weights(spec))


def _some_of_version_0(
    spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, names: Collection[str]
) -> Mapping[str, torch.Tensor]:
    state = _version_0(spec, tokenizer)
    return {name: state[name] for name in names}


def _weights(spec: RLJobSpec) -> Uints:
    return version_0(0 if spec.model.config is None else spec.model.config.seed)


def _forward(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase) -> SimForward:
    settings = spec.simulation or SimulationSpec()
    vocabulary = described_config(spec.model, tokenizer)["vocab_size"]
    return SimForward(vocabulary, micro_batch_limits(spec.training), SimulatedPace(settings.log_probs, settings.speed))


BACKEND = Backend(TrainerBackend.SIM, _build, _forward_model, _version_0, _some_of_version_0)
