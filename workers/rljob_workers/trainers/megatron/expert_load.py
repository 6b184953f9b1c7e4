"""What routers of experts have seen in an optimizer step, over all layers and ranks, as metrics.

Used by `megatron_model`. Each token is counted by the one rank whose routers deal it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from rljob_workers.algorithms.metric_totals import Total, Totals
from rljob_workers.algorithms.objective import Metric, Reduction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.megatron.balance import Balance
    from rljob_workers.trainers.megatron.routers import CountingRouter

EXPERT_METRICS = (
    Metric(
        "experts/load_max",
        Reduction.WEIGHTED,
        "",
        "tokens of the fullest expert of a layer over the mean of its experts, in an optimizer step; mean over layers",
    ),
    Metric("experts/load_max_worst", Reduction.MAX, "", "the same, of the layer where it is largest"),
    Metric(
        "experts/load_entropy",
        Reduction.WEIGHTED,
        "",
        "entropy of the shares of a layer's experts over its largest, log of their number: 1 is even; mean over layers",
    ),
    Metric("experts/unused_share", Reduction.WEIGHTED, "share", "experts without a token in an optimizer step"),
    Metric(
        "experts/aux_loss",
        Reduction.WEIGHTED,
        "",
        "balancing loss without its coefficient, 1 where experts are used evenly; mean over layers; where it is added",
    ),
    Metric(
        "experts/z_loss",
        Reduction.WEIGHTED,
        "",
        "mean square of log-sum-exp of routers' logits, without its coefficient; mean over layers; where it is added",
    ),
)
"""Of the models whose experts are counted; of a critic's model they are named `critic/experts_...`."""


class ExpertLoad:
    """Of the routers of one rank."""

    def __init__(self, routers: Sequence[CountingRouter], balance: Balance, layers: int, experts: int) -> None:
        """`layers`: of the whole model."""
        self._routers = routers
        self._balance = balance
        self._seen = torch.zeros(layers, experts + 2, dtype=torch.float64)

    def add_up(self, gang: DataParallelGroup, step: int) -> None:
        """A collective of the gang."""
        self._seen.zero_()
        for router in self._routers:
            if router.seen is not None:
                self._seen[router.layer_number - 1] = router.seen.cpu()
        gang.add_up(self._seen, f"the load of experts in optimizer step {step}")

    def clear(self) -> None:
        """The step is over."""
        for router in self._routers:
            router.seen = None

    def totals(self, normaliser: float) -> Totals:
        """Of what was added up, in a step of this normaliser."""
        return load_totals(self._seen, normaliser, self._balance)


def load_totals(seen: torch.Tensor, normaliser: float, balance: Balance) -> dict[str, Total]:
    """`seen` [layers, experts + 2] float64: tokens of each expert, then balancing loss and z-loss by weight."""
    loads, (aux, z) = seen[:, :-2], seen[:, -2:].sum(0).tolist()
    layers, experts = loads.shape
    tokens = loads.sum(1, keepdim=True)
    if not bool((tokens > 0).all()):
        return {}
    shares = loads / tokens
    fullest = shares.max(1).values * experts
    entropies = torch.special.entr(shares).sum(1) / math.log(max(2, experts))
    found = {
        "experts/load_max": _mean(float(fullest.sum()), layers),
        "experts/load_max_worst": Total(Reduction.MAX, (float(fullest.max()),)),
        "experts/load_entropy": _mean(float(entropies.sum()), layers),
        "experts/unused_share": _mean(float((loads == 0).sum()), layers * experts),
    }
    if balance.aux_coefficient > 0:
        found["experts/aux_loss"] = _mean(aux, layers * normaliser)
    if balance.z_coefficient > 0:
        found["experts/z_loss"] = _mean(z, layers * normaliser)
    return found


def _mean(numerator: float, denominator: float) -> Total:
    return Total(Reduction.WEIGHTED, (numerator, denominator))
