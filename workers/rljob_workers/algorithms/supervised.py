"""The objective of supervised fine-tuning: cross-entropy on the tokens that count."""

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

CROSS_ENTROPY = Metric("supervised/cross_entropy", Reduction.TOKEN_MEAN, "nats", "-log pi of each token")


class SupervisedObjective(Objective):
    """Formula: per token l = -log pi(token | those before it). Shapes: [tokens] -> [].

    Source: maximum likelihood of an autoregressive model; Radford et al. 2018, "Improving Language Understanding by
    Generative Pre-Training", equation 1.
    """

    needs_outputs = frozenset({Output.LOG_PROBS})
    needs_columns = frozenset({Column.LOSS_MASKS})
    metrics = (CROSS_ENTROPY,)

    def __init__(self, aggregate: Aggregation = token_mean) -> None:
        super().__init__(aggregate)

    def loss(
        self,
        outputs: Outputs,
        columns: Mapping[Column, torch.Tensor],  # noqa: ARG002 -- tokens and masks are all that counts
        rows: MaskedRows,  # noqa: ARG002
        weights: torch.Tensor,
    ) -> LossSums:
        """The weighted sum of cross-entropies."""
        assert outputs.log_probs is not None, "a model is fine-tuned by its log-probs"
        loss = torch.where(weights > 0, -outputs.log_probs, 0.0)
        return LossSums(loss @ weights.to(loss.dtype), loss.detach(), {CROSS_ENTROPY.name: MetricValues(loss.detach())})
