"""Metrics that rows carry: their means over slices and over ranks."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.algorithms.metric_totals import Total
from rljob_workers.algorithms.objective import Reduction
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.packed import RowExtra, pack_rows
from rljob_workers.trainers.data_parallel import SingleRank
from rljob_workers.trainers.mesh import data_parallel
from rljob_workers.training.row_metrics import MAX_NAMES, RowMetricTotals, RowSum, beside, of_all_ranks
from rljob_workers.transfer_queue.types import Batch
from tests.unit.training.batches import make_batch

Rows = Sequence[Mapping[str, float]]

NAMES = st.sampled_from(["reward/right", "reward/short/n", "turns"])
ROWS = st.lists(st.dictionaries(NAMES, st.floats(-1e6, 1e6)), max_size=6)


def batch_of(rows: Rows) -> Batch:
    batch = make_batch([0] * len(rows), [1.0] * len(rows), [1] * len(rows))
    batch.columns[Column.EXTRA] = pack_rows([RowExtra(metrics=row, facts={"dataset": "d"}) for row in rows])  # type: ignore[index]  # a dict
    return batch


def totals_of(rows: Rows) -> RowMetricTotals:
    totals = RowMetricTotals()
    if rows:
        totals.add_batch(batch_of(rows))
    return totals


class Adding:
    """A group whose ranks are threads."""

    def __init__(self, rank: int, tables: dict[int, torch.Tensor], barrier: threading.Barrier) -> None:
        self.rank, self.world = rank, barrier.parties
        self._tables, self._barrier = tables, barrier

    def add_up(self, values: torch.Tensor, what: str) -> None:
        self._tables[self.rank] = values.clone()
        self._barrier.wait()
        total = torch.stack([self._tables[rank] for rank in range(self.world)]).sum(0)
        self._barrier.wait()
        values.copy_(total)


def on_all_ranks(parts: Sequence[RowMetricTotals]) -> list[RowMetricTotals]:
    tables: dict[int, torch.Tensor] = {}
    barrier = threading.Barrier(len(parts), timeout=60)
    found: dict[int, RowMetricTotals] = {}

    def live(rank: int) -> None:
        group: Any = Adding(rank, tables, barrier)
        found[rank] = of_all_ranks(data_parallel(group), parts[rank])

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(len(parts))]


@given(st.lists(ROWS, min_size=1, max_size=3))
def test_every_rank_knows_the_means_over_all_rows_that_have_a_metric(rows_of_ranks: list[Rows]) -> None:
    found = on_all_ranks([totals_of(rows) for rows in rows_of_ranks])
    rows = [row for rows in rows_of_ranks for row in rows]
    for each in found:
        assert each == found[0]
        assert each.means() == {
            name if name.startswith("reward/") else f"rollout/{name}": pytest.approx(
                math.fsum(row[name] for row in rows if name in row) / sum(name in row for row in rows), abs=1e-9
            )
            for name in {name for row in rows for name in row}
        }


def test_slices_add_up_and_what_is_not_finite_is_left_out() -> None:
    totals = totals_of([{"reward/a": 1.0, "b": math.nan}, {"reward/a": 2.0}])
    totals.add_batch(batch_of([{"reward/a": 6.0, "b": math.inf}, {}]))
    assert totals.means() == {"reward/a": 3.0}
    assert of_all_ranks(data_parallel(SingleRank()), totals) == totals


def test_rows_without_the_column_have_no_metrics() -> None:
    totals = RowMetricTotals()
    totals.add_batch(make_batch([0], [1.0], [1]))
    assert (totals.means(), totals.to_bytes()) == ({}, b"")


def test_a_report_has_so_many_names_whichever_rank_made_them_up() -> None:
    names = [f"rollout/n{number:04}" for number in range(MAX_NAMES + 50)]
    one, other = ({name: RowSum(1.0, 1) for name in part} for part in (names[:-10], names[10:]))
    found = on_all_ranks([RowMetricTotals(dict(one)), RowMetricTotals(dict(other))])[0]
    assert list(found.means()) == names[:MAX_NAMES]
    assert all(found.sums[name].count == 2 for name in names[10:MAX_NAMES])


def test_a_figure_of_the_step_itself_is_not_replaced() -> None:
    of_rows = RowMetricTotals({"reward/mean": RowSum(9.0, 1), "reward/a": RowSum(3.0, 2)})
    assert beside({"reward/mean": 0.5}, of_rows) == {"reward/mean": 0.5, "reward/a": 1.5}


def test_what_a_loss_names_is_a_mean_over_the_tokens_of_all_ranks_and_steps() -> None:
    """(2 + 4) / (4 + 1) of two steps and a rank, and (1 + 3) / 8 of one step of each; no rank must know all names."""
    one, other = RowMetricTotals(), RowMetricTotals()
    one.add_loss({"large": Total(Reduction.TOKEN_MEAN, (2.0, 3.0)), "kept": Total(Reduction.TOKEN_MEAN, (0.0, 0.0))})
    one.add_loss({"large": Total(Reduction.TOKEN_MEAN, (4.0, 2.0)), "small/x": Total(Reduction.TOKEN_MEAN, (1.0, 6.0))})
    other.add_loss({"small/x": Total(Reduction.TOKEN_MEAN, (3.0, 2.0))})
    for found in on_all_ranks([one, other]):
        assert found.means() == {"loss/large": 1.2, "loss/small/x": 0.5}
