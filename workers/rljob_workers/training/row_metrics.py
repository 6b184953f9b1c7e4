"""Metrics that users' functions name: what rows carry of rewards and rollout functions, and what a loss has counted.

Their names are known only once rows have come, and may differ by rank: ranks add them up once a rollout, as bytes.
Those of a rollout function, and the reward of a greedy answer, are reported as `rollout/NAME`, a loss's as `loss/NAME`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

import numpy as np
import orjson
import torch

from rljob_workers.algorithms.metric_totals import Totals
from rljob_workers.rewards.metrics import PREFIX
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.packed import unpack_rows
from rljob_workers.trainers.mesh import Mesh
from rljob_workers.transfer_queue.types import Batch

MAX_NAMES = 400
"""Of a report. Where rollout functions make up more, it has the first in the alphabet's order."""


OF_ROLLOUT = "rollout/"


OF_LOSS = "loss/"


_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class RowSum:
    """One metric over the rows, or tokens, that have it."""

    total: float
    count: float


@dataclass(slots=True)
class RowMetricTotals:
    """Metrics of a rollout, added up: of a slice, of a rank, of all ranks."""

    sums: dict[str, RowSum] = field(default_factory=dict)
    """Figures by their name in the report."""

    def add_batch(self, batch: Batch) -> None:
        """Adds the rows of a slice. Raises CorruptPack. What is not finite is left out: it would be all of the mean."""
        if Column.EXTRA not in batch.columns:
            return  # rows of a release before it
        for row in unpack_rows(batch.columns[Column.EXTRA]):
            for name, value in row.metrics.items():
                if math.isfinite(value):
                    self._add(_reported(name), RowSum(value, 1))

    def add_loss(self, own: Totals) -> None:
        """Adds what a user's loss has named in an optimizer step."""
        for name, total in own.items():
            self._add(f"{OF_LOSS}{name}", RowSum(*total.sums))

    def add(self, other: RowMetricTotals) -> None:
        """Adds those of other rows."""
        for name, one in other.sums.items():
            self._add(name, one)

    def means(self) -> dict[str, float]:
        """Over the rows or tokens that have each; at most `MAX_NAMES`."""
        return {name: self.sums[name].total / self.sums[name].count for name in self._first()}

    def to_bytes(self) -> bytes:
        """For other ranks: JSON, whose floats are exact; no bytes where there is nothing."""
        return orjson.dumps({name: astuple(self.sums[name]) for name in self._first()}) if self.sums else b""

    @classmethod
    def from_bytes(cls, data: bytes) -> RowMetricTotals:
        """The reverse of `to_bytes`."""
        return cls({name: RowSum(*one) for name, one in orjson.loads(data).items()} if data else {})

    def _add(self, name: str, one: RowSum) -> None:
        if not one.count:
            return  # all tokens of the step were masked
        before = self.sums.get(name, RowSum(0.0, 0))
        self.sums[name] = RowSum(before.total + one.total, before.count + one.count)

    def _first(self) -> list[str]:
        """What is first over all ranks is first on each that has it, so that no rank's part of it is missing."""
        return heapq.nsmallest(MAX_NAMES, self.sums)


def _reported(name: str) -> str:
    return name if name.startswith(PREFIX) else f"{OF_ROLLOUT}{name}"


def of_all_ranks(mesh: Mesh, own: RowMetricTotals) -> RowMetricTotals:
    """Those of all rows, the same on each rank: a collective, of one sum where no row has any and else of two."""
    found = RowMetricTotals()
    for data in _gathered_bytes(mesh, own.to_bytes()):
        found.add(RowMetricTotals.from_bytes(data))
    return found


def _gathered_bytes(mesh: Mesh, own: bytes) -> Sequence[bytes]:
    """The bytes of every data-parallel rank."""
    if mesh.gang.world == 1:
        return [own]
    what = "the metrics of the rows"
    sizes = [int(size) for size in mesh.gather(torch.tensor(len(own)), what)]
    longest = max(sizes)
    if longest == 0:
        return []
    padded = own.ljust(-(-longest // _NUMBER_BYTES) * _NUMBER_BYTES, b"\0")
    numbers = torch.from_numpy(np.frombuffer(padded, np.int64).copy())
    rows = mesh.gather(numbers, what)
    return [row.numpy().tobytes()[:size] for row, size in zip(rows, sizes, strict=True)]


def beside(own: Mapping[str, float], of_rows: RowMetricTotals) -> dict[str, float]:
    """The figures of a step, with those of its rows that have no name of the step's own."""
    return {**of_rows.means(), **own}
