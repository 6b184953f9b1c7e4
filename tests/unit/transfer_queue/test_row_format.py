from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rljob_workers.transfer_queue.control.library import library
from rljob_workers.transfer_queue.row_format import (
    ChunkIds,
    ChunkRef,
    FieldPlacement,
    describe,
    field_arguments,
    pack_weights,
    parse_chunk,
    parse_claim,
)
from rljob_workers.transfer_queue.types import QueueShape, Task, TaskKind
from tests.weights import weight

CHUNKS = (
    ChunkRef(0, 3, "1:abc:0", "tokens", 0, 2, "int32", (), 100),
    ChunkRef(1, 4, "1:abc:1", "tokens", 2, 1, "int32", (2, 5), 60),
)
PLACEMENT = FieldPlacement(CHUNKS, np.array([[0, 0, 3], [0, 3, 4], [1, 0, 5]], np.uint32))
SHAPE = QueueShape(2, 2, 1, 5, 3, 8, ("tokens",), (Task("score", TaskKind.FORWARD, ("tokens",), ("scores",)),))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_chunk_comes_back_from_its_line(chunk: ChunkRef) -> None:
    assert parse_chunk(describe(chunk).encode()) == dataclasses.replace(chunk, first_row=0)


def test_ids_of_chunks_differ_between_incarnations_and_within_one() -> None:
    first, second = ChunkIds("00000000000a"), ChunkIds("00000000000b")
    drawn = [ids.draw() for ids in (first, second) for _ in range(300)]
    assert len(set(drawn)) == 600
    assert {len(name) for name in drawn} == {12}


def test_what_a_commit_states_is_what_a_claim_reads() -> None:
    count, *packed = field_arguments(PLACEMENT, ChunkIds("00000000000a"), weight(7, 2))
    id_a, line_a, id_b, line_b, rows = (part if isinstance(part, bytes) else str(part).encode() for part in packed)
    assert count == 2
    weights = pack_weights([weight(1, 2), weight(2, 2), weight(3, 2)], [weight(4, 2), weight(5, 2), weight(6, 2)])
    numbers = np.array([4, 5, 6], "<u4").tobytes()
    reply = [numbers, weights, rows, id_b + id_a, line_b, line_a]
    claimed = parse_claim(reply, 9, ["tokens"])
    assert (claimed.rollout_id, claimed.rows.tolist(), claimed.oldest.tolist()) == (9, [4, 5, 6], [1, 2, 3])
    found = claimed.fields["tokens"]
    where = [(found.chunks[chunk].key, offset, length) for chunk, offset, length in found.rows.tolist()]
    assert where == [("1:abc:0", 0, 3), ("1:abc:0", 3, 4), ("1:abc:1", 0, 5)]


def test_functions_of_two_shapes_have_two_names() -> None:
    other = dataclasses.replace(SHAPE, batch_size=3)
    assert library(SHAPE).suffix != library(other).suffix
    assert library(SHAPE) == library(dataclasses.replace(SHAPE))


def test_generated_fields_come_first_and_none_twice() -> None:
    assert SHAPE.fields == ("tokens", "scores")


def test_a_name_that_is_no_identifier_is_refused() -> None:
    with pytest.raises(ValueError, match="'to kens' is no name of a field or task"):
        library(dataclasses.replace(SHAPE, generated_fields=("to kens",)))


def test_more_fields_than_a_mask_holds_are_refused() -> None:
    """Each of the 31 has a bit of its own that Lua's signed operations hold."""
    most = dataclasses.replace(SHAPE, generated_fields=tuple(f"f{n}" for n in range(29)))
    assert f"generated_bits={(1 << 29) - 1}," in library(most).text
    with pytest.raises(ValueError, match=r"32 fields are more than the 31 .*: f0, f1, .*, f29, scores, tokens\. Pack"):
        dataclasses.replace(SHAPE, generated_fields=tuple(f"f{n}" for n in range(30)))
