"""Damaged chunks and damaged answers of the control Redis: refused by the queue's own name, or as good as whole.

RLJOB_FUZZ_EXAMPLES makes it longer.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.transfer_queue.chunk_io import BufferPool, plan_reads
from rljob_workers.transfer_queue.chunks import (
    DTYPE_CODES,
    ChunkHeader,
    decode_chunk,
    decode_header,
    encode_chunk,
    encode_header,
)
from rljob_workers.transfer_queue.errors import CorruptChunk
from rljob_workers.transfer_queue.row_format import (
    HEADER_BYTES,
    ChunkIds,
    ChunkRef,
    FieldPlacement,
    field_arguments,
    pack_weights,
    parse_chunk,
    parse_claim,
)
from tests.unit.transfer_queue.mutations import mutated

EXAMPLES = int(os.environ.get("RLJOB_FUZZ_EXAMPLES", "150"))
VALUES = torch.arange(24, dtype=torch.int32).reshape(8, 3)
CHUNKS = tuple(
    ChunkRef(unit, 3, f"1:abc:{unit}", "tokens", 0, 2, "int32", (3,), HEADER_BYTES + VALUES.nbytes) for unit in range(2)
)
PLACEMENT = FieldPlacement(CHUNKS, np.array([[0, 0, 3], [0, 3, 5], [1, 0, 8], [1, 2, 2]], np.uint32))
FIELDS = ("tokens", "scores")


def chunk_of(values: torch.Tensor) -> bytes:
    header, payload = encode_chunk(values, 2)
    return header + bytes(payload)


@settings(max_examples=EXAMPLES, deadline=None)
@given(mutated(chunk_of(VALUES)))
def test_a_damaged_chunk_is_refused_or_whole(data: bytes) -> None:
    try:
        _, values = decode_chunk(data)
    except CorruptChunk:
        return
    assert torch.equal(values, VALUES)


@settings(max_examples=EXAMPLES, deadline=None)
@given(mutated(chunk_of(VALUES)[:HEADER_BYTES]))
def test_a_damaged_header_is_refused_or_whole(data: bytes) -> None:
    try:
        header = decode_header(data)
    except CorruptChunk:
        return
    assert encode_header(header) == data[:HEADER_BYTES] == chunk_of(VALUES)[:HEADER_BYTES]


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.sampled_from(list(DTYPE_CODES)),
    st.lists(st.sampled_from([0, 1, 3, 2**31, 2**32 - 1]), max_size=4).map(tuple),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 8, 2**20, 2**63]),
)
def test_a_header_that_lies_under_a_right_seal_takes_no_memory(
    dtype: torch.dtype, inner_shape: tuple[int, ...], num_rows: int, num_bytes: int
) -> None:
    data = encode_header(ChunkHeader(dtype, inner_shape, num_rows, num_bytes, None)) + bytes(8)
    try:
        _, values = decode_chunk(data if num_bytes == 8 else data[:-8])
    except CorruptChunk:
        return
    assert values.nbytes == num_bytes <= 8


def answer() -> list[bytes]:
    """What the control Redis says of four rows with two fields."""
    weights = [WeightId(lineage=Lineage(1), version=WeightVersion(version)) for version in range(4)]
    ids, packed, lines = ChunkIds("00000000000a"), [], dict[bytes, bytes]()
    for _ in FIELDS:
        _, *described, rows = field_arguments(PLACEMENT, ids, weights[0])
        parts = [part if isinstance(part, bytes) else str(part).encode() for part in described]
        lines |= dict(zip(parts[::2], parts[1::2], strict=True))
        assert isinstance(rows, bytes)
        packed.append(rows)
    numbers = np.arange(4, dtype="<u4").tobytes()
    return [numbers, pack_weights(weights, weights), *packed, b"".join(lines), *lines.values()]


def read(reply: list[bytes]) -> None:
    """Parses and plans: the rows that are asked for lie in their chunks, and no more memory is taken than they need."""
    claimed = parse_claim(reply, 7, FIELDS)
    columns, by_unit = plan_reads(claimed.fields, BufferPool(), checksums=True)
    for column in columns.values():
        assert len(column) == len(claimed.rows) == len(claimed.oldest)
    for reads in by_unit.values():
        for each in reads:
            assert int((each.runs[:, 0] + each.runs[:, 2]).max()) <= each.chunk.num_bytes - HEADER_BYTES
            assert int(each.runs.min()) >= 0
            assert int((each.runs[:, 1] + each.runs[:, 2]).max()) <= len(each.column)


def test_an_answer_that_is_whole_is_read() -> None:
    read(answer())


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_an_answer_with_a_damaged_part_is_refused_or_consistent(data: st.DataObject) -> None:
    reply = answer()
    place = data.draw(st.integers(0, len(reply) - 1))
    reply[place] = data.draw(mutated(reply[place]))
    try:
        read(reply)
    except CorruptChunk:
        return


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(0, 8).map(lambda place: answer()[place]), st.binary(max_size=60), st.none(), st.integers()
        )
    )
)
def test_an_answer_of_other_parts_is_refused_or_consistent(reply: list[bytes]) -> None:
    try:
        read(reply)
    except CorruptChunk:
        return


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"", id="a chunk that the partition does not have"),
        pytest.param(b"0|1|tokens|2|int32||100", id="a part is missing"),
        pytest.param(b"x|1|tokens|2|int32||100|key", id="a word for a number"),
        pytest.param(b"-1|1|tokens|2|int32||100|key", id="a unit below the first"),
        pytest.param(b"0|1|tokens|2|int32|-1,-3|100|key", id="a negative shape"),
        pytest.param(b"0|1|tokens|2|int32|2147483648,2147483648,0|100|key", id="a shape larger than a value"),
        pytest.param(b"0|1|tokens|2|int32||0|key", id="no bytes"),
        pytest.param(b"0|1|tokens|2|int32||99999999999|key", id="more bytes than a value may have"),
        pytest.param(b"0|1|tok\xffens|2|int32||100|key", id="no text"),
    ],
)
def test_a_line_that_describes_no_chunk_is_refused(line: bytes) -> None:
    with pytest.raises(CorruptChunk, match="where a chunk is described"):
        parse_chunk(line)


@pytest.mark.parametrize(
    ("rows", "dtype", "sentence"),
    [
        pytest.param([[0, 0, 9]], "int32", "reach beyond the 96 bytes", id="a length beyond the chunk"),
        pytest.param([[0, 8, 1]], "int32", "reach beyond the 96 bytes", id="an offset beyond the chunk"),
        pytest.param([[0, 2**32 - 1, 2**32 - 1]], "int32", "reach beyond the 96 bytes", id="the largest numbers"),
        pytest.param([[0, 0, 1], [1, 0, 2**32 - 1]], "int32", "reach beyond", id="of the second chunk"),
        pytest.param([[2, 0, 1]], "int32", "not among their chunks", id="a chunk that is not there"),
        pytest.param([[0, 0, 1]], "quint8", "unknown dtype 'quint8'", id="a dtype that torch knows and chunks do not"),
        pytest.param([[0, 0, 1]], "nn", "unknown dtype 'nn'", id="a name in torch that is no dtype"),
    ],
)
def test_rows_that_reach_beyond_their_chunk_are_refused_before_memory_is_taken(
    rows: list[list[int]], dtype: str, sentence: str
) -> None:
    assert set(map(str, DTYPE_CODES)).isdisjoint({"torch.quint8", "torch.nn"})
    chunks = tuple(ChunkRef(0, 1, "1:a:0", "tokens", 0, 1, dtype, (3,), HEADER_BYTES + VALUES.nbytes) for _ in range(2))
    with pytest.raises(CorruptChunk, match=sentence):
        plan_reads({"tokens": FieldPlacement(chunks, np.array(rows, np.uint32))}, BufferPool(), checksums=False)
