"""How rows are cut into micro-batches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.micro_batches import MicroBatchLimits, cut

ROWS = st.lists(st.integers(1, 50).flatmap(lambda length: st.tuples(st.just(length), st.integers(0, length))))
LIMITS = st.builds(MicroBatchLimits, rows=st.none() | st.integers(1, 8), tokens=st.none() | st.integers(1, 120))


def rows_of(lengths: torch.Tensor) -> Jagged:
    return Jagged.from_lengths(torch.zeros(int(lengths.sum())), lengths)


@given(rows=ROWS, limits=LIMITS, count=st.integers(0, 12))
def test_every_row_is_in_one_micro_batch_and_both_bounds_hold(
    rows: list[tuple[int, int]], limits: MicroBatchLimits, count: int
) -> None:
    lengths, responses = torch.tensor(rows, dtype=torch.int64).view(-1, 2).unbind(1)
    ranges = cut(rows_of(lengths), responses, limits, count=count)
    assert [row for one in ranges for row in range(one.start, one.stop)] == list(range(len(rows)))
    assert len(ranges) >= count
    for one in ranges:
        chosen = lengths[one.start : one.stop]
        assert limits.rows is None or len(chosen) <= limits.rows
        assert limits.tokens is None or len(chosen) == 1 or int(chosen.sum()) <= limits.tokens
        assert one.last_token - one.first_token == int(responses[one.start : one.stop].sum())
        assert one.first_token == int(responses[: one.start].sum())
    is_empty = [one.start == one.stop for one in ranges]
    assert is_empty == sorted(is_empty), "empty ones come last"
    assert not any(is_empty) or len(ranges) == count


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (MicroBatchLimits(rows=2), [2, 2, 1]),
        (MicroBatchLimits(tokens=12), [2, 1, 2]),
        (MicroBatchLimits(rows=1, tokens=100), [1, 1, 1, 1, 1]),
        (MicroBatchLimits(), [5]),
    ],
)
def test_a_micro_batch_is_filled_before_the_next(limits: MicroBatchLimits, expected: list[int]) -> None:
    lengths = torch.tensor([4, 8, 30, 6, 6])
    assert [one.stop - one.start for one in cut(rows_of(lengths), lengths, limits)] == expected
