"""The container of variable-length rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.tensors.jagged import Jagged, JaggedParts, join


def test_rows_come_back_as_they_went_in() -> None:
    rows = [torch.arange(length) + 10 * length for length in (3, 0, 2)]
    column = Jagged.from_rows(rows)
    assert column.offsets.tolist() == [0, 3, 3, 5]
    assert all(torch.equal(*pair) for pair in zip(column.rows(), rows, strict=True))
    assert torch.equal(column.row(2), rows[2])


def test_selected_rows_keep_the_order_asked_for() -> None:
    column = Jagged.from_rows([torch.tensor([1]), torch.tensor([2, 2]), torch.tensor([3])])
    assert [row.tolist() for row in column.select([2, 0, 2]).rows()] == [[3], [1], [3]]
    assert len(column.select([])) == 0


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=6))
def test_parts_are_joined_in_order(lengths: list[list[int]]) -> None:
    rows = [[torch.full((length,), 10 * part + length) for length in counts] for part, counts in enumerate(lengths)]
    parts = [
        Jagged.from_lengths(
            torch.cat([torch.zeros(0, dtype=torch.int64), *some]), torch.tensor(counts, dtype=torch.int64)
        )
        for some, counts in zip(rows, lengths, strict=True)
    ]
    joined = Jagged.concat(parts)
    assert joined.offsets[0] == 0
    assert [row.tolist() for row in joined.rows()] == [row.tolist() for some in rows for row in some]


def test_equal_lengths_are_dense_and_others_nested() -> None:
    dense = Jagged.scalars(torch.tensor([5, 6])).nested()
    assert not dense.is_nested
    assert dense.tolist() == [[5], [6]]
    nested = Jagged.from_rows([torch.tensor([1]), torch.tensor([2, 3])]).nested()
    assert nested.is_nested
    assert [row.tolist() for row in nested.unbind()] == [[1], [2, 3]]


def test_small_parts_are_copied_together_and_large_ones_stay_where_they_lie() -> None:
    small, large = Jagged.from_rows([torch.arange(3)]), Jagged.from_rows([torch.arange(100_000)])
    assert isinstance(join([small, small]), Jagged)
    joined = join([large, small, large])
    assert isinstance(joined, JaggedParts)
    assert joined.offsets.tolist() == [0, 100_000, 100_003, 200_003]
    assert joined.parts[0].values.data_ptr() == large.values.data_ptr()
    assert join([large]) is large


def test_parts_of_another_dtype_are_refused() -> None:
    numbers, halves = Jagged.from_rows([torch.arange(3)]), Jagged.from_rows([torch.ones(3)])
    with pytest.raises(ValueError, match=r"rows of torch.float32 \[\] cannot be joined to rows of torch.int64 \[\]"):
        join([numbers, halves])


@pytest.mark.parametrize("end", [2, 4])
def test_offsets_that_do_not_fit_their_values_are_refused_where_parts_are_joined(end: int) -> None:
    right, wrong = Jagged.from_rows([torch.arange(3)]), Jagged(torch.arange(3), torch.tensor([0, end]))
    with pytest.raises(ValueError, match=f"a column has 3 values, and its offsets go from 0 to {end}. Let offsets"):
        join([right, wrong])
