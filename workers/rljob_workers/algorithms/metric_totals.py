"""Metrics added up: over the micro-batches of a rank, over the ranks in one sum, over the optimizer steps of a rollout.

Used by trainers, which add up a flat buffer over their ranks, and by reports, which merge what optimizer steps gave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from rljob_workers.algorithms.objective import LossSums, MaskedRows, Metric, MetricValues, Reduction, TokenWeights


@dataclass(frozen=True, slots=True)
class Total:
    """A metric over everything that was added up so far."""

    reduction: Reduction
    sums: tuple[float, ...]
    """Numerator and denominator of a mean; of SUM and MAX itself; of EFFECTIVE_SHARE the sum of w, of w^2, and n."""

    def merged(self, other: Total) -> Total:
        """Of both; of the same metric."""
        if self.reduction is Reduction.MAX:
            return Total(self.reduction, (max(*self.sums, *other.sums),))
        return Total(self.reduction, tuple(one + two for one, two in zip(self.sums, other.sums, strict=True)))

    @property
    def value(self) -> float | None:
        """None where nothing was counted."""
        match self.reduction:
            case Reduction.MAX:
                return self.sums[0] if self.sums[0] > -math.inf else None
            case Reduction.SUM:
                return self.sums[0]
            case Reduction.EFFECTIVE_SHARE:
                total, squares, count = self.sums
                return total * total / (count * squares) if count * squares else None
            case _:
                numerator, denominator = self.sums
                return numerator / denominator if denominator else None


Totals = Mapping[str, Total]
"""By the metric's name."""


def merged(parts: Sequence[Totals]) -> dict[str, Total]:
    """All parts together; a metric may be missing in some."""
    found: dict[str, Total] = {}
    for part in parts:
        for name, total in part.items():
            found[name] = found[name].merged(total) if name in found else total
    return found


def values_of(totals: Totals) -> dict[str, float]:
    """The value of each metric of which something was counted."""
    return {name: value for name, total in totals.items() if (value := total.value) is not None}


_LOSS, _NORMALISER, _TOKENS, _ROWS, _FIRST = range(5)


_SLOTS = {
    Reduction.ROW_MEAN: 1,
    Reduction.WEIGHTED: 2,
    Reduction.SUM: 1,
    Reduction.EFFECTIVE_SHARE: 2,
}
"""A TOKEN_MEAN has one. Of MAX each rank has one of its own, so that a sum over the ranks loses none of them."""


class StepTotals:
    """The sums of one optimizer step, in one flat buffer that ranks add up: loss, normaliser, counts, then metrics.

    totals.add(sums, rows)              for each micro-batch
    loss, normaliser, metrics = totals.read(buffer of all ranks)
    """

    def __init__(self, metrics: Sequence[Metric], rank: int, world: int) -> None:
        """Of rank `rank` of `world` that add up together."""
        self._means = [one for one in metrics if one.reduction is Reduction.TOKEN_MEAN]
        self._largest = [one for one in metrics if one.reduction is Reduction.MAX]
        self._others = [one for one in metrics if one.reduction in _SLOTS]
        self._rank, self._world = rank, world
        self._after_means = _FIRST + len(self._means)
        self._maxima = self._after_means + sum(_SLOTS[one.reduction] for one in self._others)

    @property
    def size(self) -> int:
        """Elements of the buffer."""
        return self._maxima + len(self._largest) * self._world

    def clear(self, buffer: torch.Tensor) -> None:
        """Begins a step: `buffer` [size], of a floating type."""
        buffer.zero_()
        self._own_maxima(buffer).fill_(-math.inf)

    def add_weights(self, buffer: torch.Tensor, weights: TokenWeights, rows: MaskedRows) -> None:
        """Adds what whole rows count, before they are cut into micro-batches."""
        counts = (weights.normaliser, rows.masks.sum(), (rows.counts > 0).sum())
        buffer[_NORMALISER:_FIRST] += torch.stack([count.to(buffer.dtype) for count in counts]).to(buffer.device)

    def add(self, buffer: torch.Tensor, sums: LossSums, rows: MaskedRows) -> None:
        """Adds one micro-batch of whole `rows`."""
        parts = [sums.loss.detach()[None]]
        if self._means:
            values = torch.stack([sums.metrics[one.name].values for one in self._means])
            parts.append(torch.where(rows.masks > 0, values, 0.0) @ rows.masks.to(values.dtype))
        parts += [_reduced(one.reduction, sums.metrics[one.name], rows) for one in self._others]
        added = torch.cat(parts).to(buffer.dtype)
        buffer[_LOSS] += added[0]
        buffer[_FIRST : self._maxima] += added[1:]
        if self._largest and rows.masks.numel():
            found = [_largest(sums.metrics[one.name].values, rows) for one in self._largest]
            own = self._own_maxima(buffer)
            torch.maximum(own, torch.stack(found).to(own.dtype), out=own)

    def read(self, buffer: Sequence[float]) -> tuple[float, float, dict[str, Total]]:
        """Loss sum, normaliser (1 where every token was masked) and metrics, of a buffer that was added up."""
        tokens, rows = buffer[_TOKENS], buffer[_ROWS]
        found = {
            one.name: Total(one.reduction, (buffer[_FIRST + place], tokens)) for place, one in enumerate(self._means)
        }
        at = self._after_means
        for one in self._others:
            own = tuple(buffer[at : at + _SLOTS[one.reduction]])
            at += len(own)
            extra = {Reduction.ROW_MEAN: (rows,), Reduction.EFFECTIVE_SHARE: (tokens,)}.get(one.reduction, ())
            found[one.name] = Total(one.reduction, (*own, *extra))
        for place, one in enumerate(self._largest):
            of_ranks = buffer[self._maxima + place :: len(self._largest)]
            found[one.name] = Total(one.reduction, (max(of_ranks),))
        return buffer[_LOSS], buffer[_NORMALISER] or 1.0, found

    def _own_maxima(self, buffer: torch.Tensor) -> torch.Tensor:
        first = self._maxima + self._rank * len(self._largest)
        return buffer[first : first + len(self._largest)]


def _reduced(reduction: Reduction, metric: MetricValues, rows: MaskedRows) -> torch.Tensor:
    """What one micro-batch adds, [slots]."""
    values = metric.values
    counted = rows.masks if values.shape == rows.masks.shape else (rows.counts > 0).to(rows.masks.dtype)
    match reduction:
        case Reduction.WEIGHTED:
            weights = counted if metric.weights is None else metric.weights
            weights = weights.to(values.dtype)
            return torch.stack([torch.where(weights > 0, values, 0.0) @ weights, weights.sum()])
        case Reduction.EFFECTIVE_SHARE:
            chosen = torch.where(counted > 0, values, 0.0)
            return torch.stack([chosen.sum(), chosen.square().sum()])
        case _:
            return torch.where(counted > 0, values, 0.0).sum()[None]


def _largest(values: torch.Tensor, rows: MaskedRows) -> torch.Tensor:
    counted = rows.masks if values.shape == rows.masks.shape else rows.counts
    return torch.where(counted > 0, values, -math.inf).max()
