"""A trainer's slice of a job: what the builders of all backends take from the spec."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.roles import LEADING_ROLE, VALUE_ROLE
from rljob_api.spec.training import OptimizerSpec, Schedule, TrainingSpec
from rljob_workers.algorithms.value import ValueObjective
from rljob_workers.models.building import initial_state, initial_tensors, torch_dtype
from rljob_workers.trainers import optimizer_steps
from rljob_workers.trainers.micro_batches import MicroBatchLimits
from rljob_workers.trainers.objectives import policy_objective
from rljob_workers.trainers.optimizer_steps import AdamWConfig, LearningRate, TrainerConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch
    from transformers import PreTrainedTokenizerBase

    from rljob_api.spec import RLJobSpec
    from rljob_api.spec.roles import TrainerBackend
    from rljob_workers.algorithms.objective import Objective


_FADES = {
    Schedule.CONSTANT: optimizer_steps.constant,
    Schedule.LINEAR: optimizer_steps.linear,
    Schedule.COSINE: optimizer_steps.cosine,
}


def wide_head_dtype(spec: RLJobSpec) -> torch.dtype | None:
    """Of logits, where it is another one than that of the model."""
    wanted = spec.head_dtype
    return None if wanted is spec.model.dtype else torch_dtype(wanted)


def initial_weights(spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase) -> Mapping[str, torch.Tensor]:
    """Version 0 of a model that computes."""
    return initial_state(spec.model, tokenizer)


def some_initial_weights(
    spec: RLJobSpec, tokenizer: PreTrainedTokenizerBase, names: Collection[str]
) -> Mapping[str, torch.Tensor]:
    """Those of these names; of a folder only they are read."""
    return initial_tensors(spec.model, tokenizer, names)


def trainer_config(spec: RLJobSpec) -> TrainerConfig:
    """The actor's slice of the job."""
    objective = policy_objective(spec.algorithm, spec.rollout.sampling.max_new_tokens)
    optimizer = optimizer_config(spec.training.optimizer, actor_steps(spec))
    return _trainer_config(spec, objective, optimizer, LEADING_ROLE.value)


def _trainer_config(spec: RLJobSpec, objective: Objective, optimizer: AdamWConfig, role: str) -> TrainerConfig:
    return TrainerConfig(
        dtype=torch_dtype(spec.model.dtype),
        limits=micro_batch_limits(spec.training),
        temperature=spec.rollout.sampling.temperature,
        objective=objective,
        optimizer=optimizer,
        max_skipped_steps=spec.training.max_skipped_steps,
        norm_multiple=10.0 if spec.training.norm_multiple is None else spec.training.norm_multiple,
        role=role,
    )


@dataclass(frozen=True, slots=True)
class CriticSettings:
    """What a job says of its critic alone."""

    model_path: Path | None
    """The folder of a reward model that it begins as; None: the policy's version 0 with a new head."""
    optimizer: OptimizerSpec
    value_clip: float | None
    """How far a value may move from that of before its rollout, for its error to count; None: as far as it likes."""
    total_steps: int
    """Its optimizer steps in the whole job."""
    backend: TrainerBackend

    @classmethod
    def of(cls, spec: RLJobSpec) -> CriticSettings:
        """Of a job that has one."""
        critic = spec.roles.critic
        assert critic is not None, "a critic runs where the job has one"
        return cls(
            model_path=None if critic.model_path is None else Path(critic.model_path),
            optimizer=critic.optimizer or spec.training.optimizer,
            value_clip=critic.largest_change or None,
            total_steps=total_steps(spec),
            backend=spec.backend_of(VALUE_ROLE),
        )

    def of_its_model(self, spec: RLJobSpec) -> RLJobSpec:
        """The job with the critic's model in the place of the policy's, where it begins as another one."""
        if self.model_path is None:
            return spec
        model = spec.model.model_copy(update={"path": str(self.model_path), "config": None})
        return spec.model_copy(update={"model": model})


def critic_config(settings: CriticSettings, spec: RLJobSpec) -> TrainerConfig:
    """A critic's slice of the job."""
    optimizer = optimizer_config(settings.optimizer, settings.total_steps)
    return _trainer_config(spec, ValueObjective(settings.value_clip), optimizer, VALUE_ROLE.value)


def micro_batch_limits(training: TrainingSpec) -> MicroBatchLimits:
    """What one forward and backward pass takes."""
    return MicroBatchLimits(training.micro_batch_size, training.max_tokens_per_micro_batch)


def total_steps(spec: RLJobSpec) -> int:
    """Optimizer steps on all rollouts of the job."""
    return spec.rollout.num_rollouts * _steps_of_rollout(spec)


def actor_steps(spec: RLJobSpec) -> int:
    """Optimizer steps of the actor, which takes none on the rollouts of training.criticOnlySteps."""
    return max(0, spec.rollout.num_rollouts - (spec.training.critic_only_steps or 0)) * _steps_of_rollout(spec)


def _steps_of_rollout(spec: RLJobSpec) -> int:
    rollout, training = spec.rollout, spec.training
    return rollout.batch_size * rollout.samples_per_prompt // training.global_batch_size * training.epochs_per_rollout


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
