"""Training on a rollout and the optimizer of a job (`spec.training`): fields and rules. Anyone may import it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.change import fixed
from rljob_api.rule import Rule, RuledModel
from rljob_api.spec.experts import ExpertsSpec

OPTIMIZER: tuple[Rule, ...] = (
    Rule(
        field="minLearningRate",
        holds=lambda optimizer: optimizer.min_learning_rate <= optimizer.learning_rate,
        sentence="{minLearningRate} is above learningRate {learningRate}, from which the schedule comes down. Give at "
        "most learningRate.",
        cel="!has(self.minLearningRate) || self.minLearningRate <= self.learningRate",
    ),
    Rule(
        field="minLearningRate",
        holds=lambda optimizer: optimizer.min_learning_rate == 0 or optimizer.schedule != "Constant",
        sentence="{minLearningRate} is where a schedule ends, but schedule is Constant. Set schedule to Linear or "
        "Cosine, or leave minLearningRate out.",
        cel="!has(self.minLearningRate) || self.minLearningRate == 0.0 || "
        "(has(self.schedule) && self.schedule != 'Constant')",
    ),
)


TRAINING: tuple[Rule, ...] = (
    Rule(
        field="microBatchSize",
        holds=lambda training: (training.micro_batch_size, training.max_tokens_per_micro_batch) != (None, None),
        sentence="neither microBatchSize nor maxTokensPerMicroBatch bounds what a forward and backward pass takes. "
        "Give at least one of them.",
        cel="has(self.microBatchSize) || has(self.maxTokensPerMicroBatch)",
    ),
    Rule(
        field="recomputeModules",
        holds=lambda training: training.recompute_modules is None or not training.activation_checkpointing,
        sentence="names parts of a layer, and activationCheckpointing true has all of it computed again. Give one of "
        "them.",
        cel="!has(self.recomputeModules) || !has(self.activationCheckpointing) || !self.activationCheckpointing",
    ),
)


class RecomputedModule(StrEnum):
    """A part of a layer."""

    CORE_ATTN = "CoreAttn"
    MLP = "Mlp"
    MOE = "Moe"


class Schedule(StrEnum):
    """Course of the learning rate after the warm-up, until the last optimizer step of the job."""

    CONSTANT = "Constant"
    LINEAR = "Linear"
    COSINE = "Cosine"


class OptimizerSpec(RuledModel):
    """AdamW."""

    rules = OPTIMIZER

    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """After the warm-up."""
    schedule: Schedule = Schedule.CONSTANT
    """Constant: learningRate from then on. Linear, Cosine: down to minLearningRate, which the step after the job's last
    one would have. The course is over the optimizer steps that the model takes: the actor takes none on the rollouts of
    criticOnlySteps, and after one that is skipped as not finite the next has its rate. A field that changes their
    number (rollout.numRollouts, globalBatchSize ...) changes the course of a job that exists."""
    min_learning_rate: float = Field(default=0.0, ge=0, le=1)
    """Where Linear and Cosine end."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the mean of gradients."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the mean of squared gradients."""
    epsilon: float = Field(default=1e-8, gt=0, le=1)
    """Added to the root of the mean of squared gradients."""
    weight_decay: float = Field(default=0.0, ge=0, le=10)
    """Decoupled from the gradient; applied to weight matrices."""
    max_grad_norm: float = Field(default=1.0, ge=0, le=1e9)
    """Largest norm of the gradient of all parameters; 0 turns clipping off."""
    warmup_steps: int = Field(default=0, ge=0, le=10_000_000)
    """Optimizer steps of linear warm-up."""


class ClaimPolicy(StrEnum):
    """Which rows a consumer gets. Fifo: as they became ready. Group: whole prompt groups.

    Balanced: a batch is dealt so that the token sums of its data-parallel ranks come out near each other, with as many
    rows each. For training, where Group does the same with whole groups: a forward rank that is faster asks again.
    """

    FIFO = "Fifo"
    GROUP = "Group"
    BALANCED = "Balanced"


class TrainingSpec(RuledModel):
    """How a rollout is trained on."""

    rules = TRAINING

    global_batch_size: int = Field(ge=1, le=1_000_000_000)
    """Samples of one optimizer step, over all data-parallel ranks; divides batchSize x samplesPerPrompt."""
    micro_batch_size: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Samples of one forward and backward pass on one rank, at most; null: only maxTokensPerMicroBatch bounds it."""
    max_tokens_per_micro_batch: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Tokens of one forward and backward pass on one rank, prompts and responses, at most; null: only microBatchSize
    bounds it. A sample that is longer goes alone."""
    iters_per_train_update: int = Field(default=1, ge=1, le=1_000_000)
    """A global batch is fetched in this many slices, so that training starts before it is complete. Where it is not
    given a new job gets 4 or else 2, if slices are of whole groups, the same for every rank, and no smaller than
    microBatchSize, and training need not wait for the whole rollout (roles.actorFwd); else 1. What a job began with
    stays."""
    packing: bool = True
    """Whether the samples of a micro-batch are joined without padding. The backend Fsdp does so for families of models
    that are known to come out right; others run with false: each sample padded to the longest. Flat and Megatron always
    join."""
    activation_checkpointing: bool | None = None
    """Whether a layer's activations are computed again in the backward pass instead of being kept, which a large model
    needs and which costs about a third more time. Null: with the backend Fsdp. Megatron keeps them where this is null,
    since parallelism may leave room for them, and Flat always."""
    recompute_modules: list[RecomputedModule] | None = Field(default=None, min_length=1, max_length=3)
    """Parts of each layer whose activations are computed again in the backward pass instead of being kept, with the
    backend Megatron: less memory than keeping all, and less time than activationCheckpointing. CoreAttn: scores and
    what they weigh. Mlp: the feed-forward part of a layer without experts. Moe: that of one with experts, routing and
    exchange included. Null: none (recompute_granularity selective of Megatron)."""
    experts: ExpertsSpec | None = None
    """How experts are balanced in training, with the backend Megatron and a model that has some. Null: by nothing."""
    claim_policy: ClaimPolicy = ClaimPolicy.BALANCED
    """How a slice is dealt to the ranks of the actor, and to those of the critic. Balanced: token sums as near as can
    be found. Group: whole prompt groups, which share their prompt's forward pass. Fifo: as the rows came."""
    epochs_per_rollout: int = Field(default=1, ge=1, le=64)
    """Passes over one rollout."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """AdamW and its learning rate."""
    max_skipped_steps: int = Field(default=3, ge=0, le=1_000_000)
    """Optimizer steps in a row that may be skipped because their loss or gradient is not finite, before the job
    fails."""
    norm_multiple: float | None = Field(default=None, ge=0, le=1e9)
    """An optimizer step whose gradient has a norm of more than this many times the running one is taken, and reported
    by the event GradientSpike with its rows. Null: 10. 0: never."""
    critic_only_steps: int | None = Field(default=None, ge=1, le=10_000_000)
    """On so many rollouts, the first ones of the job, the critic alone is trained: the policy's version goes on without
    a change of its weights. Null: on none."""
    ref_update_interval: Annotated[
        int | None, fixed("rows are measured against a version that this interval chose, and no other one is kept.")
    ] = Field(default=None, ge=1, le=10_000_000)
    """k: train_r is measured against version floor(r / k) * k. Null: always version 0."""
