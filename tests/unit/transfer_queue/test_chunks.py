"""A chunk comes back as it was, or is refused: nothing in between."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.transfer_queue.chunks import (
    DTYPE_CODES,
    ChunkHeader,
    decode_chunk,
    decode_header,
    encode_chunk,
    encode_header,
    raw_bytes,
)
from rljob_workers.transfer_queue.errors import CorruptChunk
from rljob_workers.transfer_queue.row_format import HEADER_BYTES

inner_shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def make_values(dtype: torch.dtype, num_elements: int, inner_shape: tuple[int, ...]) -> torch.Tensor:
    numbers = torch.arange(num_elements * math.prod(inner_shape)).remainder(2 if dtype is torch.bool else 100)
    return numbers.to(dtype).reshape(num_elements, *inner_shape)


def make_chunk(values: torch.Tensor, num_rows: int = 1) -> bytes:
    header, payload = encode_chunk(values, num_rows)
    return header + bytes(payload)


@given(st.sampled_from(list(DTYPE_CODES)), st.integers(0, 20), inner_shapes, st.integers(0, 2**32 - 1))
def test_every_dtype_and_shape_comes_back_as_it_was(
    dtype: torch.dtype, num_elements: int, inner_shape: tuple[int, ...], num_rows: int
) -> None:
    values = make_values(dtype, num_elements, inner_shape)
    header, back = decode_chunk(make_chunk(values, num_rows))
    assert (header.dtype, header.inner_shape, header.num_rows) == (dtype, inner_shape, num_rows)
    if math.prod(inner_shape):
        assert back.shape == values.shape
    assert torch.equal(back.flatten(), values.flatten())


@given(st.data())
def test_a_changed_byte_is_refused_wherever_it_is(data: st.DataObject) -> None:
    chunk = bytearray(make_chunk(make_values(torch.float32, 6, (2,)), 3))
    place = data.draw(st.integers(0, len(chunk) - 1))
    chunk[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptChunk):
        decode_chunk(chunk)


@given(st.data())
def test_a_chunk_that_is_cut_off_or_goes_on_is_refused(data: st.DataObject) -> None:
    chunk = make_chunk(make_values(torch.int64, 5, ()), 5)
    changed = data.draw(
        st.one_of(
            st.integers(0, len(chunk) - 1).map(lambda end: chunk[:end]),
            st.binary(min_size=1).map(lambda more: chunk + more),
        )
    )
    with pytest.raises(CorruptChunk):
        decode_chunk(changed)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptChunk):
        decode_chunk(data)


@given(
    st.binary(min_size=4, max_size=4),
    st.lists(st.integers(0, 255), min_size=4, max_size=4),
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4),
)
def test_a_sealed_header_with_nonsense_in_it_is_refused_or_consistent(
    magic: bytes, small: list[int], num_bytes: int, inner: list[int]
) -> None:
    """Even a header with a right checksum of its own must not give a tensor that its bytes do not hold."""
    import struct

    import xxhash

    body = struct.pack("<4sBBBBIIQQ4I", magic if small[0] % 2 else b"RLQC", *small, 1, 0, num_bytes, 0, *inner)
    data = body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    try:
        header = decode_header(data)
    except CorruptChunk:
        return
    assert encode_header(header) == data
    assert header.num_bytes == 0 or header.num_bytes % header.element_bytes == 0


def test_the_format_is_pinned() -> None:
    """Chunks may outlive a process of an older build: a change here needs a new format version."""
    header = encode_header(ChunkHeader(torch.int32, (3,), 2, 24, 0x0102030405060708))
    assert header[:48].hex() == (
        "524c5143" "01" "04" "01" "01" "02000000" "00000000" "1800000000000000" "0807060504030201"
        "03000000" "00000000" "00000000" "00000000"
    )  # fmt: skip
    assert HEADER_BYTES == len(header) == 56
    assert sorted(DTYPE_CODES.values()) == list(range(1, 11))


def test_values_that_the_format_has_no_place_for_are_refused_with_a_cure() -> None:
    with pytest.raises(ValueError, match=r"dtype torch\.complex64 cannot be stored\. Use one of uint8, .*bool\."):
        encode_chunk(torch.zeros(1, dtype=torch.complex64), 1)
    with pytest.raises(ValueError, match=r"has 5 dimensions, at most 4 can be stored\. Flatten the rows\."):
        encode_chunk(torch.zeros(1, 1, 1, 1, 1, 1), 1)


def test_a_contiguous_tensor_is_not_copied() -> None:
    values = torch.zeros(4, dtype=torch.int32)
    view = raw_bytes(values)
    values[1] = -1
    assert bytes(view[4:8]) == b"\xff\xff\xff\xff"
