"""Row numbers as runs, and where rows lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from rljob_transfer_queue.rows import (
    Places,
    field_arguments,
    numbers_at,
    pack_documents,
    pack_runs,
    parse_places,
    unpack_documents,
    unpack_runs,
)
from rljob_workers.transfer_queue.row_format import ChunkIds, ChunkRef, FieldPlacement


@given(some.lists(some.integers(0, 1 << 50)))
def test_row_numbers_come_back(numbers: list[int]) -> None:
    assert unpack_runs(pack_runs(numbers)) == numbers


@pytest.mark.parametrize(
    ("numbers", "runs"), [([], 0), ([5], 1), ([5, 6, 7], 1), ([7, 6, 5], 3), ([1, 2, 9, 10, 3], 3)], ids=str
)
def test_neighbours_share_a_run(numbers: list[int], runs: int) -> None:
    assert len(pack_runs(numbers)) == 12 * runs


@given(some.lists(some.binary(max_size=9)))
def test_documents_come_back(documents: list[bytes]) -> None:
    assert unpack_documents(pack_documents(documents)) == documents


def test_places_lie_in_pages() -> None:
    pages = np.array([3, 7], "<u8").tobytes()
    assert numbers_at(np.array([0, 255, 256, 300]), pages) == [768, 1023, 1792, 1836]


def make_places(key: str, lengths: list[int]) -> Places:
    chunk = ChunkRef(0, 1, key, "x", 0, len(lengths), "int32", (2,), 100)
    table = np.zeros((len(lengths), 3), np.uint32)
    table[:, 2] = lengths
    return Places(FieldPlacement((chunk,), table), np.full(len(lengths), 2, np.uint32))


def test_places_are_cut_and_joined() -> None:
    joined = Places.concat([make_places("a", [1, 2]), make_places("b", [3])]).select([2, 0])
    assert [chunk.key for chunk in joined.placement.chunks] == ["a", "b"]
    assert joined.placement.rows.tolist() == [[1, 0, 3], [0, 0, 1]]


def test_places_come_back_from_a_commit() -> None:
    given = make_places("0:abc:1", [4, 5])
    name, count, chunk_id, line, entries = field_arguments("x", given, ChunkIds("abcdefabcdef"))
    assert (name, count) == ("x", 1)
    assert isinstance(line, str)
    assert isinstance(chunk_id, bytes)
    assert isinstance(entries, bytes)
    # A row that does not have the field is all zeros.
    found = parse_places(["x"], [entries + bytes(24), chunk_id, line.encode()])["x"]
    assert found.kinds.tolist() == [2, 2, 0]
    assert found.placement.rows[:2].tolist() == given.placement.rows.tolist()
    assert found.placement.chunks[0].key == "0:abc:1"
