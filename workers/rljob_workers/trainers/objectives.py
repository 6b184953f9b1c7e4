"""From a job's `algorithm` to the objective that its actor minimises, by a table for each part. For the factories."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rljob_api.spec.algorithm import DEFAULT_LOSS, Correction, Loss, LossAggregation, RatioLevel
from rljob_workers.algorithms.aggregation import constant, sequence_mean, sequence_sum, token_mean
from rljob_workers.algorithms.corrections import (
    RatioMask,
    ice_pop,
    importance_weights,
    masked_weights,
    of_geometric_mean,
    of_sequence,
    of_token,
    truncated_weights,
)
from rljob_workers.algorithms.kl import KL_ESTIMATES
from rljob_workers.algorithms.losses import ClipBounds, Temperatures, cispo, gspo, ppo_clip, reinforce, sapo
from rljob_workers.algorithms.policy import KlTerm, PolicyObjective
from rljob_workers.user_algorithms import OwnAggregation, OwnCorrection, OwnLoss
from rljob_workers.user_functions import Signature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rljob_api.spec.algorithm import AlgorithmSpec, ClipSpec, CorrectionSpec
    from rljob_workers.algorithms.aggregation import Aggregation
    from rljob_workers.algorithms.corrections import Correction as Correct
    from rljob_workers.algorithms.corrections import RatioOf
    from rljob_workers.algorithms.losses import PolicyLoss

PPO_BOUNDS, GSPO_BOUNDS = ClipBounds(0.2, 0.28), ClipBounds(3e-4, 4e-4)
"""Where the job gives none: those of DAPO and of GSPO's paper."""


def bounds_of(clip: ClipSpec, default: ClipBounds = PPO_BOUNDS) -> ClipBounds:
    """The job's, or those of `default`; without a dual clip."""
    return ClipBounds(default.low if clip.low is None else clip.low, default.high if clip.high is None else clip.high)


def _temperatures(clip: ClipSpec) -> Temperatures:
    positive, negative = clip.positive_temperature, clip.negative_temperature
    return Temperatures(1.0 if positive is None else positive, 1.05 if negative is None else negative)


LOSSES: Mapping[str, Callable[[ClipSpec], PolicyLoss]] = {
    Loss.PPO_CLIP: lambda clip: partial(ppo_clip, bounds=replace(bounds_of(clip), dual=clip.dual)),
    Loss.GSPO: lambda clip: partial(gspo, bounds=bounds_of(clip, GSPO_BOUNDS)),
    Loss.CISPO: lambda clip: partial(cispo, high=4.0 if clip.high is None else clip.high),
    Loss.SAPO: lambda clip: partial(sapo, temperatures=_temperatures(clip)),
    Loss.REINFORCE: lambda clip: reinforce,  # noqa: ARG005 - one signature
}
"""What each reads of `clip` the API must know, too: `rljob_api.spec.algorithm.CLIP_READ_BY`."""


AGGREGATIONS: Mapping[str, Callable[[int], Aggregation]] = {
    LossAggregation.TOKEN_MEAN: lambda length: token_mean,  # noqa: ARG005 - one signature
    LossAggregation.SEQUENCE_MEAN: lambda length: sequence_mean,  # noqa: ARG005
    LossAggregation.SEQUENCE_SUM: lambda length: sequence_sum,  # noqa: ARG005
    LossAggregation.CONSTANT: lambda length: partial(constant, length=length),
}
"""Each of the length that `constant` divides by."""


RATIOS: Mapping[RatioLevel, RatioOf] = {
    RatioLevel.TOKEN: of_token,
    RatioLevel.SEQUENCE: of_sequence,
    RatioLevel.GEOMETRIC_MEAN: of_geometric_mean,
}


CORRECTIONS: Mapping[str, Callable[[CorrectionSpec], Correct | None]] = {
    Correction.NONE: lambda spec: None,  # noqa: ARG005 - one signature
    Correction.TIS: lambda spec: partial(
        truncated_weights, cap=2.0 if spec.cap is None else spec.cap, ratio=_ratio(spec.level)
    ),
    Correction.ICE_POP: lambda spec: partial(
        ice_pop,
        floor=0.5 if spec.floor is None else spec.floor,
        cap=5.0 if spec.cap is None else spec.cap,
        ratio=_ratio(spec.level),
    ),
    Correction.UNTRUNCATED: lambda spec: partial(importance_weights, ratio=_ratio(spec.level)),
}


def _ratio(level: RatioLevel | None) -> RatioOf:
    return RATIOS[level or RatioLevel.TOKEN]


_OWN_LOSS = Signature(
    4, "new_log_probs, log_probs, advantages, rows", "def loss(new, old, advantages, rows): return TokenLosses(...)"
)


_OWN_AGGREGATION = Signature(1, "rows", "def aggregate(rows): return TokenWeights(...)")


_OWN_CORRECTION = Signature(
    3, "log_probs, rollout_log_probs, rows", "def correct(log_probs, rollout_log_probs, rows): return weights"
)


def policy_objective(algorithm: AlgorithmSpec, max_new_tokens: int) -> PolicyObjective:
    """What the actor minimises on responses of up to so many tokens.

    Raises ValueError where a function of the user's cannot be loaded.
    """
    kl = algorithm.kl
    return PolicyObjective(
        _loss(algorithm),
        _aggregation(algorithm, max_new_tokens),
        kl=KlTerm(kl.coefficient, KL_ESTIMATES[kl.estimator], bool(kl.weighted)) if kl.is_in_loss else None,
        correct=correction_of(algorithm),
        entropy_bonus=algorithm.entropy_bonus or 0.0,
    )


def _loss(algorithm: AlgorithmSpec) -> PolicyLoss:
    name = algorithm.loss or DEFAULT_LOSS
    if name in LOSSES:
        return LOSSES[name](algorithm.clip)
    return OwnLoss.load(algorithm, "loss", name, _OWN_LOSS)  # type: ignore[no-any-return]


def _aggregation(algorithm: AlgorithmSpec, max_new_tokens: int) -> Aggregation:
    name = algorithm.loss_aggregation
    if name in AGGREGATIONS:
        return AGGREGATIONS[name](algorithm.constant_length or max_new_tokens)
    return OwnAggregation.load(algorithm, "lossAggregation", name, _OWN_AGGREGATION)  # type: ignore[no-any-return]


def correction_of(algorithm: AlgorithmSpec) -> Correct | None:
    """What weighs the policy loss; None: nothing does."""
    mask, weigh = algorithm.correction.mask, _weights(algorithm)
    if mask is None:
        return weigh
    floor, cap = (0.0 if mask.floor is None else mask.floor), (math.inf if mask.cap is None else mask.cap)
    return partial(masked_weights, mask=RatioMask(floor, cap, _ratio(mask.level)), weigh=weigh)


def _weights(algorithm: AlgorithmSpec) -> Correct | None:
    correction = algorithm.correction
    if correction.kind in CORRECTIONS:
        return CORRECTIONS[correction.kind](correction)
    return OwnCorrection.load(algorithm, "correction.kind", correction.kind, _OWN_CORRECTION)  # type: ignore[no-any-return]
