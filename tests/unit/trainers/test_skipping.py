"""Which optimizer steps are skipped, and what is said of them."""

import math

import pytest
import torch

from rljob_workers.trainers.micro_batches import RowRange
from rljob_workers.trainers.optimizer_steps import NORM_STEPS, NormWatch, Skipping, Suspects
from tests.unit.trainers.rows import make_rows


@pytest.mark.parametrize(
    ("loss", "norm", "shown"),
    [
        (math.nan, 1.0, "loss nan and a gradient of norm 1"),
        (0.5, math.inf, "loss 0.5 and a gradient of norm inf"),
        (-math.inf, math.nan, "loss -inf and a gradient of norm nan"),
    ],
)
def test_what_is_not_finite_is_skipped(loss: float, norm: float, shown: str) -> None:
    message = Skipping(1).judge(7, loss, norm, Suspects())
    assert (
        message
        == f"optimizer step 7 has {shown}: the loss of each row of this rank is finite. It is skipped, 1 in a row."
    )


def test_only_more_in_a_row_than_the_limit_fail() -> None:
    skipping, none = Skipping(2), Suspects()
    assert [skipping.judge(1, math.nan, 1.0, none) is None for _ in range(2)] == [False, False]
    assert skipping.judge(1, 0.5, 1.0, none) is None
    assert [skipping.judge(2, math.nan, 1.0, none) is None for _ in range(2)] == [False, False]
    with pytest.raises(ValueError, match=r"^training\.maxSkippedSteps: 3 optimizer steps in a row .* the limit is 2;"):
        skipping.judge(2, math.nan, 1.0, none)
    with pytest.raises(ValueError, match="the limit is 0;"):
        Skipping(0).judge(1, math.nan, 1.0, none)


def test_rows_are_named_once_in_their_order_and_not_all_of_many() -> None:
    rows, suspects = make_rows(0), Suspects()
    ends = [0, *rows.response_lengths.cumsum(0).tolist()]
    for start, stop in ((0, 6), (6, 16)):
        losses = torch.zeros(ends[stop] - ends[start])
        losses[0] = math.inf  # of the first row of each micro-batch
        suspects.add(rows, RowRange(start, stop, ends[start], ends[stop]), losses)
    assert suspects.rows() == [0, 6]
    suspects.clear()
    assert suspects.rows() == []
    suspects.add(rows, RowRange(0, 16, 0, ends[-1]), torch.full((ends[-1],), math.nan))
    message = Skipping(1).judge(1, math.nan, math.nan, suspects)
    assert message is not None
    assert "the loss of rows 0, 1, 2, 3, 4, 5, 6, 7 and 8 more is not finite" in message


def test_a_step_that_taught_nothing_is_no_measure_of_the_next() -> None:
    watch, none = NormWatch(10.0), Suspects()
    zeros = [0.0] * NORM_STEPS
    assert [watch.judge(step, norm, none) for step, norm in enumerate([*zeros, 0.5, *zeros, *[0.5] * 9])] == [None] * 30
    assert watch.judge(31, 4.9, none) is None, "of ten steps that taught something the mean is 0.5"
    fresh = NormWatch(10.0)
    for step in range(NORM_STEPS):
        fresh.judge(step, 0.5, none)
        fresh.judge(step, 0.0, none)
    message = fresh.judge(21, 6.0, none)
    assert message is not None
    assert "norm 6, 12 times the running norm 0.5;" in message


def test_a_gradient_far_beyond_those_before_is_named_with_the_rows_of_the_largest_losses() -> None:
    rows, suspects = make_rows(0), Suspects()
    total = int(rows.response_lengths.sum())
    losses = torch.zeros(total)
    ends = rows.response_lengths.cumsum(0)
    losses[ends[3] - 1], losses[ends[9] - 1] = -7.0, 4.0
    suspects.add(rows, RowRange(0, 16, 0, total), losses)
    watch, none = NormWatch(10.0), NormWatch(0.0)
    early = [watch.judge(step, 100.0 if step == 5 else 1.0, suspects) for step in range(NORM_STEPS)]
    assert early == [None] * NORM_STEPS, "too few to judge"
    assert watch.judge(11, 100.0, suspects) is None, "the running norm is (9 + 100) / 10"
    for step in range(60):
        watch.judge(step, 1.0, suspects)
        assert none.judge(step, 1e9 if step == 50 else 1.0, suspects) is None
    message = watch.judge(72, 30.0, suspects)
    assert message is not None
    assert message.startswith("optimizer step 72 has a gradient of norm 30, ")
    assert "of this rank's rows 3, 9, " in message
