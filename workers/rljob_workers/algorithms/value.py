"""The objective of a critic: squared errors of values against returns, clipped around the values of before."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rljob_workers.algorithms.aggregation import Aggregation, token_mean
from rljob_workers.algorithms.objective import (
    LossSums,
    MaskedRows,
    Metric,
    MetricValues,
    Objective,
    Output,
    Outputs,
    Reduction,
)
from rljob_workers.tensors.columns import Column

VALUE = Metric("critic/value", Reduction.TOKEN_MEAN, "", "value of each token")


VALUE_ERROR = Metric("critic/squared_error", Reduction.TOKEN_MEAN, "", "(value - return)^2, not clipped")


VALUE_CLIPPED = Metric("critic/clip_fraction", Reduction.TOKEN_MEAN, "share", "tokens whose clipped error counts")


EXPLAINED = Metric(
    "critic/explained_variance",
    Reduction.EXPLAINED_VARIANCE,
    "",
    "1 - Var(return - value of before the step) / Var(return)",
)


class ValueObjective(Objective):
    """Formula: per token l = max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2) / 2. Shapes: all [tokens] -> [].

    `Column.VALUES` are the critic's before its first step on the rollout, `Column.RETURNS` what they should be.
    Source: Schulman et al. 2017, arXiv:1707.06347, section 5; the clip is that of its authors' implementation
    (baselines, ppo2), as in Huang et al. 2022, "The 37 Implementation Details of PPO", detail 9.
    """

    needs_outputs = frozenset({Output.VALUES})
    needs_columns = frozenset({Column.VALUES, Column.RETURNS, Column.LOSS_MASKS})
    metrics = (VALUE, VALUE_ERROR, VALUE_CLIPPED, EXPLAINED)

    def __init__(self, clip: float | None = 0.2, aggregate: Aggregation = token_mean) -> None:
        """`clip` None: a plain squared error."""
        self._clip = clip
        super().__init__(aggregate)

    def loss(
        self,
        outputs: Outputs,
        columns: Mapping[Column, torch.Tensor],
        rows: MaskedRows,  # noqa: ARG002 -- each token counts by itself
        weights: torch.Tensor,
    ) -> LossSums:
        """The weighted sum of errors."""
        assert outputs.values is not None, "a critic is trained by its values"
        keep = weights > 0
        values = torch.where(keep, outputs.values, 0.0)
        returns = torch.where(keep, columns[Column.RETURNS], 0.0)
        plain = (values - returns).square()
        before = torch.where(keep, columns[Column.VALUES], 0.0)
        error = plain
        if self._clip is not None:
            error = torch.maximum(plain, (before + (values - before).clamp(-self._clip, self._clip) - returns).square())
        loss = error / 2
        metrics = {
            VALUE.name: MetricValues(values.detach()),
            VALUE_ERROR.name: MetricValues(plain.detach()),
            VALUE_CLIPPED.name: MetricValues((error > plain).to(plain.dtype)),
            EXPLAINED.name: MetricValues(before, targets=returns),
        }
        return LossSums(loss @ weights.to(loss.dtype), loss.detach(), metrics)
