"""From a job's `algorithm` to the objective that its actor minimises, by a table for each part. For the factories."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rljob_api.spec.algorithm import Correction, KlEstimator, LossAggregation
from rljob_workers.algorithms.aggregation import sequence_mean, token_mean
from rljob_workers.algorithms.corrections import truncated_weights
from rljob_workers.algorithms.kl import k1, k2, k3
from rljob_workers.algorithms.losses import ppo_clip
from rljob_workers.algorithms.policy import KlTerm, PolicyObjective

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rljob_api.spec.algorithm import AlgorithmSpec, CorrectionSpec
    from rljob_workers.algorithms.aggregation import Aggregation
    from rljob_workers.algorithms.corrections import Correction as Correct
    from rljob_workers.algorithms.kl import KlEstimate

KL: Mapping[KlEstimator, KlEstimate] = {KlEstimator.K1: k1, KlEstimator.K2: k2, KlEstimator.K3: k3}


AGGREGATIONS: Mapping[LossAggregation, Aggregation] = {
    LossAggregation.TOKEN_MEAN: token_mean,
    LossAggregation.SEQUENCE_MEAN: sequence_mean,
}


CORRECTIONS: Mapping[Correction, Callable[[CorrectionSpec], Correct | None]] = {
    Correction.NONE: lambda spec: None,  # noqa: ARG005 - one signature
    Correction.TIS: lambda spec: partial(truncated_weights, cap=spec.cap),
}


def policy_objective(algorithm: AlgorithmSpec) -> PolicyObjective:
    """What the actor minimises."""
    kl, clip = algorithm.kl, algorithm.clip
    return PolicyObjective(
        partial(ppo_clip, low=clip.low, high=clip.high),
        AGGREGATIONS[algorithm.loss_aggregation],
        kl=KlTerm(kl.coefficient, KL[kl.estimator]) if kl.coefficient > 0 else None,
        correct=CORRECTIONS[algorithm.correction.kind](algorithm.correction),
    )
