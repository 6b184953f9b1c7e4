"""Cutting columns: every row is in one piece, pieces keep their limit, units carry alike."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.chunks import Piece, cut_columns, row_table
from rljob_workers.transfer_queue.row_format import HEADER_BYTES, MAX_CHUNK_BYTES, MAX_VALUE_BYTES
from rljob_workers.transfer_queue.storage import deal


def make_column(lengths: list[int], *, element: int = 1) -> Jagged:
    values = torch.arange(sum(lengths) * element, dtype=torch.int32).reshape(-1, element)
    return Jagged.from_lengths(values, torch.tensor(lengths, dtype=torch.int64))


def rebuilt(column: Jagged, pieces: list[Piece]) -> list[torch.Tensor]:
    """Rows as the row table finds them in the pieces' payloads."""
    parts = [
        torch.frombuffer(bytearray(b"".join(piece.payload)), dtype=torch.int32) for piece in pieces if piece.payload
    ]
    parts_by_piece = iter(parts)
    flat = [next(parts_by_piece) if piece.payload else torch.zeros(0, dtype=torch.int32) for piece in pieces]
    inner = column.values.shape[1]
    table = row_table(column.offsets.numpy(), [piece.first_row for piece in pieces]).astype(np.int64)
    return [
        flat[piece][start * inner : (start + length) * inner].reshape(length, inner) for piece, start, length in table
    ]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 3))
def test_every_row_is_found_where_the_table_states(lengths: list[int], element: int) -> None:
    column = make_column(lengths, element=element)
    pieces, _ = cut_columns({"tokens": column}, 2, checksums=False)
    assert all(torch.equal(*pair) for pair in zip(rebuilt(column, pieces), column.rows(), strict=True))


@pytest.mark.parametrize(
    ("lengths", "num_units"),
    [
        pytest.param([300_000] * 40, 2, id="rows of 1.2 MB are cut into pieces of a few rows"),
        pytest.param([10, 3_000_000, 10], 2, id="a row that is longer than a chunk is a piece of its own"),
        pytest.param([0] * 5 + [1_100_000] + [0] * 5 + [500_000] * 3, 3, id="empty rows go with their neighbours"),
    ],
)
def test_pieces_keep_the_limit_and_lose_nothing(lengths: list[int], num_units: int) -> None:
    column = make_column(lengths)
    pieces, _ = cut_columns({"tokens": column}, num_units, checksums=False)
    assert len(pieces) > 1
    assert all(piece.num_bytes - HEADER_BYTES <= MAX_CHUNK_BYTES or piece.num_rows == 1 for piece in pieces)
    assert [piece.first_row for piece in pieces] == np.cumsum([0] + [piece.num_rows for piece in pieces])[:-1].tolist()
    assert sum(piece.num_rows for piece in pieces) == len(lengths)
    assert all(torch.equal(*pair) for pair in zip(rebuilt(column, pieces), column.rows(), strict=True))


def test_a_small_put_of_many_rows_is_one_piece_per_field_on_one_unit() -> None:
    columns = {name: make_column([9] * 512) for name in ("tokens", "loss_masks", "rewards")}
    pieces, _ = cut_columns(columns, 4, checksums=False)
    assert [piece.field for piece in pieces] == ["tokens", "loss_masks", "rewards"]
    assert list(deal(pieces, [2, 3, 0, 1])) == [2]


def test_a_big_put_loads_all_units_alike() -> None:
    columns = {name: make_column([6000] * 64) for name in ("tokens", "log_probs", "advantages")}
    pieces, _ = cut_columns(columns, 2, checksums=False)
    shares = deal(pieces, [1, 0])
    loads = sorted(sum(piece.num_bytes for piece in share) for share in shares.values())
    assert len(loads) == 2
    assert loads[1] - loads[0] <= 6000 * 4 + 6 * HEADER_BYTES


def test_a_row_that_no_server_takes_is_refused_by_name() -> None:
    row = torch.empty(MAX_VALUE_BYTES, dtype=torch.uint8)  # nothing touches its pages
    column = Jagged.from_lengths(row, torch.tensor([0, MAX_VALUE_BYTES]))
    with pytest.raises(
        ValueError, match=r"row 1 of images has 536870912 bytes, a value in Redis has at most 536870912\."
    ):
        cut_columns({"images": column}, 2, checksums=False)


@pytest.mark.parametrize("offsets", [[0, 2], [0, 4], [1, 3]])
def test_offsets_that_do_not_fit_their_values_are_refused_by_name(offsets: list[int]) -> None:
    column = Jagged(torch.arange(3), torch.tensor(offsets))
    first, last = offsets
    with pytest.raises(ValueError, match=f"tokens has 3 values, and its offsets go from {first} to {last}. Let"):
        cut_columns({"tokens": column}, 2, checksums=False)
