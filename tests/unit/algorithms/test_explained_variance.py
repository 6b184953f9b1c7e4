"""Explained variance: by hand, the same however tokens are cut and dealt, and right where the mean is large."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.algorithms.metric_totals import StepTotals, Total
from rljob_workers.algorithms.objective import LossSums, MaskedRows, Metric, MetricValues, Reduction

METRICS = (
    Metric("tests/largest", Reduction.MAX, "", ""),
    Metric("tests/explained", Reduction.EXPLAINED_VARIANCE, "", ""),
    Metric("tests/mean", Reduction.TOKEN_MEAN, "", ""),
    Metric("tests/of_zero", Reduction.EXPLAINED_VARIANCE, "", ""),
)


def add(totals: StepTotals, buffer: torch.Tensor, values: torch.Tensor, targets: torch.Tensor, counts: object) -> None:
    rows = MaskedRows(torch.as_tensor(counts), torch.tensor([len(values)]))
    figures = {
        "tests/largest": MetricValues(values),
        "tests/explained": MetricValues(values, targets=targets),
        "tests/mean": MetricValues(values),
        "tests/of_zero": MetricValues(torch.zeros_like(values), targets=targets),
    }
    totals.add(buffer, LossSums(torch.zeros(()), torch.zeros_like(values), figures), rows)


def total_of(
    values: torch.Tensor, targets: torch.Tensor, *, parts: int = 1, world: int = 1, dtype: torch.dtype = torch.float32
) -> dict[str, Total]:
    """Of tokens that are dealt to ranks, each of which has so many micro-batches."""
    everyone = []
    for rank in range(world):
        totals = StepTotals(METRICS, rank, world)
        buffer = torch.zeros(totals.size, dtype=dtype)
        totals.clear(buffer)
        own = zip(values[rank::world].tensor_split(parts), targets[rank::world].tensor_split(parts), strict=True)
        for some_values, some_targets in own:
            add(totals, buffer, some_values, some_targets, torch.ones(len(some_values)))
        everyone.append(buffer)
    return StepTotals(METRICS, 0, world).read(torch.stack(everyone).sum(0).tolist())[2]


def test_it_is_what_the_formula_gives() -> None:
    totals = StepTotals(METRICS, 0, 1)
    buffer = torch.zeros(totals.size)
    totals.clear(buffer)
    values = torch.tensor([0.0, 2.0, 2.0, torch.nan])
    add(totals, buffer, values, torch.tensor([1.0, 2.0, 3.0, torch.nan]), [1, 1, 1, 0])
    _, _, found = totals.read(buffer.tolist())
    # Targets 1 2 3: squared deviations 2. Misses 1 0 1: mean 2/3, squared deviations 1/9 + 4/9 + 1/9 = 2/3.
    assert found["tests/explained"].sums == pytest.approx((3.0, 2.0, 2 / 3, 2.0, 2 / 3))
    assert found["tests/explained"].value == pytest.approx(1 - 1 / 3)
    assert found["tests/of_zero"].value == pytest.approx(0.0)
    assert found["tests/largest"].value == 2.0


def test_nothing_is_explained_where_all_targets_are_equal_or_none_counts() -> None:
    equal = total_of(torch.tensor([0.0, 1.0]), torch.tensor([3.0, 3.0]))
    assert equal["tests/explained"].value is None
    nothing = total_of(torch.zeros(0), torch.zeros(0))
    assert nothing["tests/explained"].value is None
    both = nothing["tests/explained"].merged(
        total_of(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))["tests/explained"]
    )
    assert both.value == 1.0


TOKENS = st.lists(st.tuples(st.floats(-5, 5, width=16), st.floats(-5, 5, width=16)), min_size=2, max_size=30)


@settings(max_examples=30)  # of whole batches each
@given(TOKENS, st.integers(1, 5), st.integers(1, 4), st.integers(0, 30))
def test_neither_micro_batches_nor_ranks_nor_steps_change_it(
    tokens: list[tuple[float, float]], parts: int, world: int, first_step: int
) -> None:
    values, targets = torch.tensor(tokens, dtype=torch.float64).unbind(1)
    whole = total_of(values, targets, dtype=torch.float64)["tests/explained"]
    cut = total_of(values, targets, parts=parts, world=world, dtype=torch.float64)["tests/explained"]
    steps = [
        total_of(values[some], targets[some], world=world, dtype=torch.float64)["tests/explained"]
        for some in (slice(0, first_step), slice(first_step, None))
    ]
    for other in (cut, steps[0].merged(steps[1])):
        assert other.sums == pytest.approx(whole.sums, rel=1e-9, abs=1e-9)
    if float(targets.var()) > 1e-6:
        expected = 1 - float((targets - values).var() / targets.var())
        assert whole.value == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_a_small_variance_beside_a_large_mean_is_not_lost_in_float32() -> None:
    chance = torch.Generator().manual_seed(0)
    deviations = 0.01 * torch.randn(4000, generator=chance, dtype=torch.float64)
    targets = (1000.0 + deviations).float()
    values = targets - 0.003 * torch.randn(4000, generator=chance)
    expected = 1 - float((targets - values).double().var() / targets.double().var())
    found = total_of(values, targets, parts=50, world=3)["tests/explained"].value
    assert 0.8 < expected < 0.95
    assert found == pytest.approx(expected, abs=2e-3)
