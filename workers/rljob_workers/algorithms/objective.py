"""What a trainer minimises: the contract of an objective, with its inputs, its sums and its metrics.

An objective knows no model, a model knows no objective: trainers give an objective the outputs of a forward pass, the
columns of the rows and the weights of their tokens. Pure torch; an objective is one file of this room.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from rljob_workers.tensors.columns import Column

if TYPE_CHECKING:
    from rljob_workers.algorithms.aggregation import Aggregation

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-20 before `exp`: beyond it a ratio says only that a token is far away, and float32 would
come to infinity at 88."""


def ratio_of(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp(log_ratio), with the log-ratio clamped to +-LOG_RATIO_LIMIT; no gradient beyond. [n] -> [n]."""
    return torch.exp(log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


class Output(Enum):
    """What a forward pass may give for each response token."""

    LOG_PROBS = "log_probs"
    ENTROPY = "entropy"
    VALUES = "values"


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """Of the response tokens of whole rows, back to back, all [tokens] float32; None: not computed.

    A backend that splits rows over ranks gathers what it returns, so that sums over a row are sums over all of it.
    """

    log_probs: torch.Tensor | None = None
    """Log pi of each token, with a graph where gradients are on."""
    entropy: torch.Tensor | None = None
    """Of the distribution that the token was drawn from, in nats; with a graph where the objective needs it."""
    values: torch.Tensor | None = None
    """Expected return from each token on."""

    def of(self, output: Output) -> torch.Tensor:
        """One of them by name; ValueError for one that the model that has made these does not compute."""
        found: torch.Tensor | None = getattr(self, output.value)
        if found is None:
            given = ", ".join(one.value for one in Output if getattr(self, one.value) is not None)
            raise ValueError(f"{output.value}: this model computes {given} only. Ask one that has this output.")
        return found


class MaskedRows:
    """Whole rows of response tokens, back to back, of which some tokens count.

    `masks` [tokens] float32, 1 where a token counts; `response_lengths` [rows] int64.
    """

    def __init__(self, loss_masks: torch.Tensor, response_lengths: torch.Tensor) -> None:
        self.masks = loss_masks.float()
        self.response_lengths = response_lengths

    @cached_property
    def row_of_token(self) -> torch.Tensor:
        """[tokens] int64."""
        return torch.arange(self.response_lengths.numel(), device=self.masks.device).repeat_interleave(
            self.response_lengths
        )

    @cached_property
    def counts(self) -> torch.Tensor:
        """Tokens of each row that count, [rows] float32."""
        return self._sum(self.masks)

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Of each row, over the tokens that count: [tokens] -> [rows]; others may be anything."""
        return self._sum(torch.where(self.masks > 0, values, 0.0))

    def means(self, values: torch.Tensor) -> torch.Tensor:
        """Of each row, over the tokens that count: [tokens] -> [rows]; 0 for a row without one."""
        return self.sums(values) / self.counts.clamp(min=1.0)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Gives every token its row's value: [rows] -> [tokens]."""
        return values[self.row_of_token]

    def _sum(self, values: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(self.response_lengths.numel(), dtype=values.dtype, device=values.device)
        return zeros.index_add(0, self.row_of_token, values)


@dataclass(frozen=True, slots=True, eq=False)
class TokenWeights:
    """What each response token counts in the loss: loss = sum(weights * token loss) / sum of all normalisers.

    Made of whole rows before anything is split over micro-batches or ranks.
    """

    weights: torch.Tensor
    """[tokens] float32; 0: the token is not looked at, whatever it holds."""
    normaliser: torch.Tensor
    """[] float32, a sum: that of the global batch is the sum over its parts."""


class Reduction(Enum):
    """How a metric is taken over tokens, rows, micro-batches, ranks and the optimizer steps of a rollout."""

    TOKEN_MEAN = "mean over tokens"  # noqa: S105 - tokens of text
    ROW_MEAN = "mean over samples"
    WEIGHTED = "mean over what it counts"
    """Of the tokens or rows that the objective chooses, by weights that it gives."""
    SUM = "sum"
    MAX = "maximum"
    EFFECTIVE_SHARE = "effective share of tokens"
    """(sum of w)^2 / (n sum of w^2) of weights w of n tokens: 1 where all are equal."""
    EXPLAINED_VARIANCE = "explained variance over tokens"
    """1 - Var(target - value) / Var(target): 1 where all values are their targets, 0 where all are alike."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of training."""

    name: str
    """`group/what`, unique in the job."""
    reduction: Reduction
    unit: str
    formula: str
    """One line, for the page of metrics."""


@dataclass(frozen=True, slots=True, eq=False)
class MetricValues:
    """The values of a metric in one micro-batch, before their reduction."""

    values: torch.Tensor
    """[tokens], or [rows] for ROW_MEAN and where `weights` are [rows]. Without a gradient."""
    weights: torch.Tensor | None = None
    """For WEIGHTED: as `values`; 0: not looked at. None: the tokens, or rows, that count in the loss."""
    targets: torch.Tensor | None = None
    """For EXPLAINED_VARIANCE: as `values`."""


@dataclass(frozen=True, slots=True, eq=False)
class LossSums:
    """Of the tokens of one micro-batch. Only `loss` carries a gradient."""

    loss: torch.Tensor
    """[], the weighted sum of the token losses: not yet divided by a normaliser."""
    token_losses: torch.Tensor
    """[tokens], without their weights; 0 where the weight is 0."""
    metrics: Mapping[str, MetricValues] = field(default_factory=dict)
    """By name, for each of the objective's metrics."""
    own: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What a user's loss adds to them: names that are not known before it is called, [tokens], without a gradient."""


class Objective(ABC):
    """A loss with all that a trainer must know of it. Immutable: one object serves all micro-batches."""

    def __init__(self, aggregate: Aggregation) -> None:
        """`aggregate` says over what it is averaged."""
        self._aggregate = aggregate

    needs_columns: frozenset[Column]
    """What rows must have beside tokens and lengths."""
    needs_outputs: frozenset[Output]
    """What a forward pass must give, with a graph."""
    metrics: tuple[Metric, ...]
    """In a fixed order: ranks add them up by place."""

    def weigh(self, rows: MaskedRows) -> TokenWeights:
        """The weights of all tokens of whole rows."""
        return self._aggregate(rows)

    @abstractmethod
    def loss(
        self, outputs: Outputs, columns: Mapping[Column, torch.Tensor], rows: MaskedRows, weights: torch.Tensor
    ) -> LossSums:
        """The loss of some whole rows.

        `columns`: values of each column of these rows, [tokens] over the response or [rows]; `weights` [tokens], as
        `weigh` made them. Columns that the rows do not have are absent: `needs_columns` never are.
        """
