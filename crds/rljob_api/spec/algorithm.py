"""Advantages and loss of a job (`spec.algorithm`): fields and rules. Anyone may import it. Computes nothing."""

from enum import StrEnum

from pydantic import Field

from rljob_api.base import ApiModel


class Advantage(StrEnum):
    """How rewards become advantages."""

    GRPO = "Grpo"


class ClipSpec(ApiModel):
    """PPO clipping of the policy ratio to [1 - low, 1 + high]."""

    low: float = Field(default=0.2, gt=0, lt=1)
    """Distance of the lower bound from 1."""
    high: float = Field(default=0.28, gt=0, le=10)
    """Distance of the upper bound from 1 (larger than `low`: clip-higher)."""


class KlEstimator(StrEnum):
    """Estimators of KL(policy || reference), Schulman 2020."""

    K1 = "K1"
    K2 = "K2"
    K3 = "K3"


class KlSpec(ApiModel):
    """KL term in the loss. A coefficient above 0 needs the reference role."""

    coefficient: float = Field(default=0.0, ge=0, le=100)
    """Weight of the term; 0 leaves it out."""
    estimator: KlEstimator = KlEstimator.K3
    """K1: log ratio. K2: half its square. K3: unbiased and never negative."""


class Correction(StrEnum):
    """What is done about rollout log-probs that differ from the trainer's."""

    NONE = "None"
    TIS = "Tis"


class CorrectionSpec(ApiModel):
    """Importance correction for stale or mismatched log-probs (TIS: weights capped at `cap`)."""

    kind: Correction = Correction.TIS
    """Tis: truncated importance sampling. None: rollout log-probs are not looked at."""
    cap: float = Field(default=2.0, gt=0, le=1000)
    """Largest importance weight of a token."""


class LossAggregation(StrEnum):
    """Over what the loss is averaged: all tokens of the global batch, or samples of token means."""

    TOKEN_MEAN = "TokenMean"  # noqa: S105 - a token of text, not a secret
    SEQUENCE_MEAN = "SequenceMean"


class Truncated(StrEnum):
    """What is learnt from samples that were cut off at the longest response."""

    KEEP = "Keep"
    MASK = "Mask"


class AlgorithmSpec(ApiModel):
    """A policy gradient over groups of samples."""

    advantage: Advantage = Advantage.GRPO
    """Grpo: (reward - mean of its group) / standard deviation of its group."""
    clip: ClipSpec = ClipSpec()
    """How far the policy may move in one step."""
    kl: KlSpec = KlSpec()
    """Pull towards the reference model."""
    correction: CorrectionSpec = CorrectionSpec()
    """What is done about samples that the trained policy did not make."""
    loss_aggregation: LossAggregation = LossAggregation.TOKEN_MEAN
    """Over what the loss is averaged."""
    truncated: Truncated = Truncated.KEEP
    """Samples that were cut off at maxNewTokens or at the model's last position. Keep: they are trained on like others.
    Mask: the loss leaves them out (overlong filtering, DAPO), while their rewards still count in mean and standard
    deviation of their group."""
