"""Metrics added up: over the micro-batches of a rank, over the ranks in one sum, over the optimizer steps of a rollout.

Used by trainers, which add up a flat buffer over their ranks, and by reports, which merge what optimizer steps gave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch

from rljob_workers.algorithms.objective import LossSums, MaskedRows, Metric, MetricValues, Reduction, TokenWeights


@dataclass(frozen=True, slots=True)
class Total:
    """A metric over everything that was added up so far."""

    reduction: Reduction
    sums: tuple[float, ...]
    """Numerator and denominator of a mean; of SUM and MAX itself; of EFFECTIVE_SHARE the sum of w, of w^2, and n; of
    EXPLAINED_VARIANCE n, then means and sums of squared deviations, of the targets and of what values miss them by."""

    def merged(self, other: Total) -> Total:
        """Of both; of the same metric."""
        if self.reduction is Reduction.MAX:
            return Total(self.reduction, (max(*self.sums, *other.sums),))
        if self.reduction is Reduction.EXPLAINED_VARIANCE:
            return Total(self.reduction, _joint_moments([self.sums, other.sums]))
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
            case Reduction.EXPLAINED_VARIANCE:
                _, _, _, of_targets, of_misses = self.sums
                return 1.0 - of_misses / of_targets if of_targets else None
            case _:
                numerator, denominator = self.sums
                return numerator / denominator if denominator else None


_MOMENTS = 5


def _joined(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Of the moments of two disjoint sets of tokens those of both together: float64 [_MOMENTS].

    Formula: n = n1 + n2, d = m2 - m1, m = m1 + d n2 / n, M = M1 + M2 + d^2 n1 n2 / n.
    Source: Chan, Golub, LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances".
    Plain sums of squares would lose a variance that is small beside the mean.
    """
    count = one[:1] + other[:1]
    share = other[:1] / count.clamp(min=1.0)
    apart = other[1:3] - one[1:3]
    return torch.cat([count, one[1:3] + apart * share, one[3:] + other[3:] + apart.square() * one[:1] * share])


def _joint_moments(parts: Sequence[Sequence[float]]) -> tuple[float, ...]:
    moments: list[float] = reduce(_joined, torch.tensor(parts, dtype=torch.float64)).tolist()
    return tuple(moments)


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


class OwnTotals:
    """Means over tokens of what a user's loss has named itself, of this rank's rows of one optimizer step."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, own: Mapping[str, torch.Tensor], rows: MaskedRows) -> None:
        """Adds one micro-batch; what is computed on a device stays there until it is read."""
        for name, values in own.items():
            total = torch.stack([torch.where(rows.masks > 0, values, 0.0).sum(), rows.masks.sum()]).double()
            self._sums[name] = self._sums[name] + total if name in self._sums else total

    def read(self) -> dict[str, Total]:
        """Over all that was added. One that is not finite is left out: it would be all of the mean."""
        found = {name: Total(Reduction.TOKEN_MEAN, tuple(sums.tolist())) for name, sums in self._sums.items()}
        return {name: total for name, total in found.items() if math.isfinite(total.sums[0])}

    def clear(self) -> None:
        """The step is over."""
        self._sums.clear()


_LOSS, _NORMALISER, _TOKENS, _ROWS, _FIRST = range(5)


_SLOTS = {
    Reduction.ROW_MEAN: 1,
    Reduction.WEIGHTED: 2,
    Reduction.SUM: 1,
    Reduction.EFFECTIVE_SHARE: 2,
}
"""A TOKEN_MEAN has one. Of MAX and EXPLAINED_VARIANCE each rank has places of its own, so that a sum over the ranks
loses none of them."""


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
        self._explained = [one for one in metrics if one.reduction is Reduction.EXPLAINED_VARIANCE]
        self._rank, self._world = rank, world
        self._after_means = _FIRST + len(self._means)
        self._maxima = self._after_means + sum(_SLOTS[one.reduction] for one in self._others)
        self._moments = self._maxima + len(self._largest) * world

    @property
    def size(self) -> int:
        """Elements of the buffer."""
        return self._moments + _MOMENTS * len(self._explained) * self._world

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
        for place, one in enumerate(self._explained):
            own = buffer[self._place_of_moments(place, self._rank)]
            own.copy_(_joined(own.double(), _moments_of(sums.metrics[one.name], rows)))

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
            of_ranks = buffer[self._maxima + place : self._moments : len(self._largest)]
            found[one.name] = Total(one.reduction, (max(of_ranks),))
        for place, one in enumerate(self._explained):
            parts = [buffer[self._place_of_moments(place, rank)] for rank in range(self._world)]
            found[one.name] = Total(one.reduction, _joint_moments(parts))
        return buffer[_LOSS], buffer[_NORMALISER] or 1.0, found

    def _place_of_moments(self, place: int, rank: int) -> slice:
        start = self._moments + (rank * len(self._explained) + place) * _MOMENTS
        return slice(start, start + _MOMENTS)

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


def _moments_of(metric: MetricValues, rows: MaskedRows) -> torch.Tensor:
    """Of the tokens of one micro-batch that count, float64 [_MOMENTS]."""
    assert metric.targets is not None, "values are explained by targets"
    counted = rows.masks > 0
    targets = torch.where(counted, metric.targets, 0.0).double()
    misses = torch.where(counted, metric.targets - metric.values, 0.0).double()
    both, count = torch.stack([targets, misses]), counted.sum().double()
    means = both.sum(1) / count.clamp(min=1.0)
    squares = ((both - means[:, None]).square() * counted).sum(1)
    return torch.cat([count[None], means, squares])


def _largest(values: torch.Tensor, rows: MaskedRows) -> torch.Tensor:
    counted = rows.masks if values.shape == rows.masks.shape else rows.counts
    return torch.where(counted > 0, values, -math.inf).max()
