"""Chunks: the stored form of a run of rows of one field, and how columns are cut into them.

Pure; for the storage units only. A chunk is a header of fixed size and the raw bytes of a tensor: no pickle, and
every length is checked. Malformed bytes raise `CorruptChunk`. A small put makes one piece per field, all for one unit
(one round trip); a big one is cut so that all units carry about the same bytes.

    offset  size  what
    0       4     magic `RLQC`
    4       1     format version (1)
    5       1     dtype code
    6       1     flags (bit 0: the payload has a checksum)
    7       1     number of inner dimensions (0 to 4)
    8       4     rows
    12      4     zero
    16      8     payload bytes
    24      8     xxh3-64 of the payload, or zero
    32      16    inner shape, four u32, unused ones zero
    48      8     xxh3-64 of the 48 bytes before

The header has a checksum of its own, so that no flipped bit turns a chunk into another valid one.
"""

from __future__ import annotations

import itertools
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from rljob_workers.tensors.jagged import refuse_misfit
from rljob_workers.transfer_queue.errors import CorruptChunk
from rljob_workers.transfer_queue.row_format import (
    CHUNK_FORMAT_VERSION,
    CHUNK_MAGIC,
    DTYPE_NAMES,
    HEADER_BYTES,
    MAX_CHUNK_BYTES,
    MAX_VALUE_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rljob_workers.tensors.jagged import Column, Jagged


MAX_INNER_DIMS = 4


MAX_INNER_ELEMENTS = 512 << 20
"""Of one element [*inner_shape]: more bytes than one value in Redis may have."""


_BODY = struct.Struct("<4sBBBBIIQQ4I")


_SEAL = struct.Struct("<Q")


_HAS_CHECKSUM = 1


DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}


DTYPE_CODES = {DTYPES[name]: code for name, code in DTYPE_NAMES.items()}


_DTYPE_OF = {code: dtype for dtype, code in DTYPE_CODES.items()}


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The decoded header of a chunk."""

    dtype: torch.dtype
    inner_shape: tuple[int, ...]
    num_rows: int
    num_bytes: int
    """Of the payload."""
    checksum: int | None
    """xxh3-64 of the payload; None where the writer did not take one."""

    @property
    def element_bytes(self) -> int:
        """Bytes of one element, inner shape included (0 for an inner shape with a zero)."""
        return element_bytes(self.dtype, self.inner_shape)


def element_bytes(dtype: torch.dtype, inner_shape: tuple[int, ...]) -> int:
    """Bytes of one element [*inner_shape] of a jagged column."""
    return dtype.itemsize * math.prod(inner_shape)


def raw_bytes(values: torch.Tensor) -> memoryview:
    """The bytes of a CPU tensor without a copy where it is contiguous."""
    flat = values.detach().contiguous().reshape(-1)
    return _view_of(flat)


def _view_of(flat: torch.Tensor) -> memoryview:
    array: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return memoryview(array)  # type: ignore[arg-type]  # an array is a buffer; only Python 3.12 has a type for it


def payload_checksum(payload: Sequence[bytes | memoryview]) -> int:
    """xxh3-64 of the payload, which may lie in several places."""
    checksum = xxhash.xxh3_64()
    for part in payload:
        checksum.update(part)
    return checksum.intdigest()


def encode_header(header: ChunkHeader) -> bytes:
    """The header's bytes.

    Raises ValueError for a dtype or an inner shape that the format has no place for.
    """
    code = DTYPE_CODES.get(header.dtype)
    if code is None:
        raise ValueError(f"TransferQueue: dtype {header.dtype} cannot be stored. Use one of {', '.join(DTYPES)}.")
    num_inner = len(header.inner_shape)
    if num_inner > MAX_INNER_DIMS:
        raise ValueError(
            f"TransferQueue: inner shape {header.inner_shape} has {num_inner} dimensions, at most {MAX_INNER_DIMS} can"
            " be stored. Flatten the rows."
        )
    inner = (*header.inner_shape, *([0] * (MAX_INNER_DIMS - num_inner)))
    flags = 0 if header.checksum is None else _HAS_CHECKSUM
    body = _BODY.pack(
        CHUNK_MAGIC,
        CHUNK_FORMAT_VERSION,
        code,
        flags,
        num_inner,
        header.num_rows,
        0,
        header.num_bytes,
        header.checksum or 0,
        *inner,
    )
    return body + _SEAL.pack(xxhash.xxh3_64_intdigest(body))


def decode_header(data: bytes | bytearray | memoryview) -> ChunkHeader:
    """Reads the header at the head of `data`.

    Raises CorruptChunk for anything that `encode_header` did not write.
    """
    if len(data) < HEADER_BYTES:
        raise CorruptChunk(
            f"TransferQueue: a chunk of {len(data)} bytes is shorter than its header ({HEADER_BYTES} bytes)"
        )
    body = bytes(data[: _BODY.size])
    magic, version, code, flags, num_inner, num_rows, zero, num_bytes, checksum, *inner = _BODY.unpack(body)
    if magic != CHUNK_MAGIC:
        raise CorruptChunk(f"TransferQueue: a chunk begins with {magic!r} and not with {CHUNK_MAGIC!r}")
    if version != CHUNK_FORMAT_VERSION:
        raise CorruptChunk(f"TransferQueue: a chunk has format version {version}, known is {CHUNK_FORMAT_VERSION}")
    (seal,) = _SEAL.unpack(bytes(data[_BODY.size : HEADER_BYTES]))
    found = xxhash.xxh3_64_intdigest(body)
    if seal != found:
        raise CorruptChunk(
            f"TransferQueue: a chunk's header does not match its checksum ({found:x}, stored is {seal:x})"
        )
    dtype = _DTYPE_OF.get(code)
    if dtype is None or flags & ~_HAS_CHECKSUM or num_inner > MAX_INNER_DIMS or zero or any(inner[num_inner:]):
        raise CorruptChunk(
            f"TransferQueue: a chunk's header has dtype code {code}, flags {flags}, {num_inner} inner dims"
        )
    header = ChunkHeader(
        dtype, tuple(inner[:num_inner]), num_rows, num_bytes, checksum if flags & _HAS_CHECKSUM else None
    )
    _refuse_uneven(header)
    return header


def _refuse_uneven(header: ChunkHeader) -> None:
    if math.prod(max(1, size) for size in header.inner_shape) > MAX_INNER_ELEMENTS:
        raise CorruptChunk(f"TransferQueue: a chunk's header has the inner shape {header.inner_shape}")
    size = header.element_bytes
    if (header.num_bytes % size if size else header.num_bytes) != 0:
        raise CorruptChunk(
            f"TransferQueue: a chunk has {header.num_bytes} bytes, not a multiple of its elements' {size} bytes"
        )


def encode_chunk(values: torch.Tensor, num_rows: int) -> tuple[bytes, memoryview]:
    """Header, with a checksum, and payload of `values` [elements, *inner]; the payload is a view, nothing is copied."""
    payload = raw_bytes(values)
    checksum = payload_checksum([payload])
    header = ChunkHeader(values.dtype, tuple(values.shape[1:]), num_rows, payload.nbytes, checksum)
    return encode_header(header), payload


def verify_payload(header: ChunkHeader, payload: memoryview) -> None:
    """Raises CorruptChunk when the payload is not the one that the header was written for."""
    if payload.nbytes != header.num_bytes:
        raise CorruptChunk(
            f"TransferQueue: a chunk has {payload.nbytes} payload bytes, its header says {header.num_bytes} bytes"
        )
    if header.checksum is None:
        return
    found = payload_checksum([payload])
    if found != header.checksum:
        raise CorruptChunk(
            f"TransferQueue: a chunk's {payload.nbytes} payload bytes do not match their checksum ({found:x}, stored is"
            f" {header.checksum:x})"
        )


def decode_chunk(data: bytes | bytearray | memoryview) -> tuple[ChunkHeader, torch.Tensor]:
    """Header and values [elements, *inner] (copied out of `data`)."""
    header = decode_header(data)
    payload = memoryview(data)[HEADER_BYTES:]
    verify_payload(header, payload)
    size = header.element_bytes
    values = torch.empty((header.num_bytes // size if size else 0, *header.inner_shape), dtype=header.dtype)
    _view_of(values.view(-1))[:] = payload
    return header, values


SPREAD_BYTES = 1 << 20
"""Below this a second unit costs more round trips than its bandwidth saves."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A run of rows of one field, encoded."""

    field: str
    first_row: int
    num_rows: int
    dtype: str
    inner_shape: tuple[int, ...]
    header: bytes
    payload: tuple[memoryview, ...]
    """Where the bytes lie, one behind the other."""
    num_bytes: int
    """Of the whole chunk."""


def cut_columns(
    columns: Mapping[str, Column], num_units: int, *, checksums: bool
) -> tuple[list[Piece], dict[str, npt.NDArray[np.uint32]]]:
    """Cuts every field into runs of rows of at most `MAX_CHUNK_BYTES` (a longer row is a piece of its own).

    Returns all pieces, and per field where its rows lie in its own (`row_table`).

    Raises ValueError for a row that no server takes, and where offsets do not fit their values.
    """
    parts = {field: column.parts for field, column in columns.items()}
    total = sum(part.values.nbytes for of_field in parts.values() for part in of_field)
    wanted = MAX_CHUNK_BYTES if total <= SPREAD_BYTES else -(-total // (2 * num_units))
    limit = min(MAX_CHUNK_BYTES, max(SPREAD_BYTES, wanted))
    pieces: list[Piece] = []
    tables = {}
    for field, column in columns.items():
        offsets = column.offsets.numpy()
        cut = _cut(field, parts[field], offsets, limit, checksums)
        tables[field] = row_table(offsets, [piece.first_row for piece in cut])
        pieces += cut
    return pieces, tables


def _cut(
    field: str, parts: Sequence[Jagged], offsets: npt.NDArray[np.int64], limit: int, checksums: bool
) -> list[Piece]:
    values = parts[0].values
    inner_shape = tuple(values.shape[1:])
    dtype = str(values.dtype).removeprefix("torch.")
    refuse_misfit(field, sum(part.values.shape[0] for part in parts), int(offsets[0]), int(offsets[-1]))
    ends = offsets * element_bytes(values.dtype, inner_shape)
    edges = _edges(ends, limit)
    pieces = []
    for (first, last), payload in zip(itertools.pairwise(edges), _payloads(parts, ends[edges]), strict=True):
        num_bytes = int(ends[last] - ends[first])
        if num_bytes > MAX_VALUE_BYTES - HEADER_BYTES:
            raise ValueError(
                f"TransferQueue: row {first} of {field} has {num_bytes} bytes, a value in Redis has at most"
                f" {MAX_VALUE_BYTES}. Cut the row into several fields."
            )
        checksum = payload_checksum(payload) if checksums else None
        header = encode_header(ChunkHeader(values.dtype, inner_shape, last - first, num_bytes, checksum))
        pieces.append(Piece(field, first, last - first, dtype, inner_shape, header, payload, len(header) + num_bytes))
    return pieces


def _payloads(parts: Sequence[Jagged], ends: npt.NDArray[np.int64]) -> list[tuple[memoryview, ...]]:
    """The bytes between each two of `ends`, which count over all parts."""
    views = [raw_bytes(part.values) for part in parts]
    payloads, at, used = [], 0, 0
    for size in np.diff(ends).tolist():
        payload = []
        while size:
            taken = min(size, views[at].nbytes - used)
            if taken:
                payload.append(views[at][used : used + taken])
            size, used = size - taken, used + taken
            if used == views[at].nbytes:
                at, used = at + 1, 0
        payloads.append(tuple(payload))
    return payloads


def _edges(ends: npt.NDArray[np.int64], limit: int) -> list[int]:
    """Rows at which to cut, so that no piece has more than `limit` bytes unless it is one row."""
    num_rows = len(ends) - 1
    edges = [0]
    while edges[-1] < num_rows:
        first = edges[-1]
        last = int(np.searchsorted(ends, ends[first] + limit, side="right")) - 1
        edges.append(min(max(last, first + 1), num_rows))
    return edges


def row_table(offsets: npt.NDArray[np.int64], edges: Sequence[int]) -> npt.NDArray[np.uint32]:
    """[rows, 3]: piece, offset in the piece (elements), length; `edges` are the pieces' first rows."""
    num_rows = len(offsets) - 1
    table = np.empty((num_rows, 3), np.uint32)
    firsts = np.asarray(edges, np.int64)
    table[:, 0] = np.searchsorted(firsts, np.arange(num_rows), side="right") - 1
    table[:, 1] = offsets[:-1] - offsets[firsts[table[:, 0]]]
    table[:, 2] = np.diff(offsets)
    return table
