"""Planning a fetch: which chunk is read whole, which in parts, and where every byte goes. Pure.

For `storage` only. Rows that lie one behind the other in a chunk are read as one run, straight into their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from rljob_workers.transfer_queue.chunks import DTYPE_CODES, HEADER_BYTES, element_bytes
from rljob_workers.transfer_queue.errors import CorruptChunk
from rljob_workers.transfer_queue.jagged import Jagged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rljob_workers.transfer_queue.buffers import Buffer, BufferPool
    from rljob_workers.transfer_queue.placement import ChunkRef, FieldPlacement

RUN_BYTES = 1 << 14
"""What a command of its own costs, in bytes: a chunk is read whole where its other bytes cost less than its runs do."""
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPE_CODES}
_NO_BOUND = 1 << 62
_ELEMENTS_PER_SLICE = 100
"""Shorter runs are copied by index: a slice costs about as much as so many indexed elements."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRead:
    """What is wanted of one chunk, and where it goes."""

    chunk: ChunkRef
    runs: npt.NDArray[np.int64]
    """[runs, 3], bytes: start in the payload, place in `column`, length (> 0)."""
    column: memoryview
    """The bytes of the whole column that is being fetched."""
    whole: bool
    """One GET; else a GETRANGE for each run."""
    element_bytes: int

    @property
    def wanted_bytes(self) -> int:
        """Sum of the runs."""
        return int(self.runs[:, 2].sum())

    def sole_target(self, payload_bytes: int) -> memoryview | None:
        """Where the whole payload goes, if it goes to one place as it is."""
        start, place, length = self.runs[0].tolist()
        if len(self.runs) == 1 and start == 0 and length == payload_bytes:
            return self.column[place : place + length]
        return None

    def scatter(self, payload: memoryview) -> None:
        """Copies every run out of the payload, which must reach as far as the runs do."""
        if self.wanted_bytes >= len(self.runs) * self.element_bytes * _ELEMENTS_PER_SLICE:
            for start, place, length in self.runs.tolist():
                self.column[place : place + length] = payload[start : start + length]
            return
        source, target = (_elements(view, self.element_bytes) for view in (payload, self.column))
        start, place, length = (self.runs // self.element_bytes).T
        within = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
        target[np.repeat(place, length) + within] = source[np.repeat(start, length) + within]


def _elements(view: memoryview, size: int) -> npt.NDArray[np.uint8]:
    """[elements, size]."""
    return np.frombuffer(view, np.uint8).reshape(-1, size)


def plan_reads(
    fields: Mapping[str, FieldPlacement], pool: BufferPool, *, checksums: bool
) -> tuple[dict[str, Jagged], dict[int, list[ChunkRead]]]:
    """Columns whose values are still uninitialised, and per unit the reads that fill them.

    `checksums`: chunks are read whole, since a part cannot be checked.
    """
    columns: dict[str, Jagged] = {}
    by_unit: dict[int, list[ChunkRead]] = {}
    for field, placement in fields.items():
        columns[field], reads = _plan_field(field, placement, pool, checksums)
        for read in reads:
            by_unit.setdefault(read.chunk.unit, []).append(read)
    return columns, by_unit


def _plan_field(
    field: str, placement: FieldPlacement, pool: BufferPool, checksums: bool
) -> tuple[Jagged, list[ChunkRead]]:
    dtype, inner_shape = _element_type(field, placement)
    offsets = np.zeros(len(placement.rows) + 1, np.int64)
    np.cumsum(placement.rows[:, 2], out=offsets[1:])
    size = element_bytes(dtype, inner_shape)
    _refuse_beyond(field, placement, size)
    num_elements = int(offsets[-1])
    buffer = pool.lend(num_elements * size)
    values = _values(buffer, num_elements, dtype, inner_shape)
    column = Jagged(values, torch.from_numpy(offsets))
    if not size or not num_elements:
        return column, []
    view = memoryview(buffer)  # type: ignore[arg-type]  # an array is a buffer; only Python 3.12 has a word for it
    return column, [
        _read(placement.chunks[chunk], runs * size, view, size, checksums)
        for chunk, runs in _runs_by_chunk(placement, offsets)
    ]


def _values(buffer: Buffer, num_elements: int, dtype: torch.dtype, inner_shape: tuple[int, ...]) -> torch.Tensor:
    """[num_elements, *inner_shape] in the memory of `buffer`, which lives as long as the tensor does."""
    if not buffer.nbytes:
        return torch.empty((num_elements, *inner_shape), dtype=dtype)
    return torch.from_numpy(buffer).view(dtype).view(num_elements, *inner_shape)


def _runs_by_chunk(
    placement: FieldPlacement, offsets: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Chunk -> its runs [runs, 3] that have elements: start in the chunk, place in the column, length (elements)."""
    rows = placement.rows
    if len(placement.chunks) == 1 and _is_steady(rows, offsets):
        yield 0, np.array([[rows[0, 1], 0, offsets[-1]]], np.int64)
        return
    chunk, start = rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64)
    end = start + rows[:, 2]
    breaks = np.flatnonzero((chunk[1:] != chunk[:-1]) | (start[1:] != end[:-1])) + 1
    edges = np.concatenate(([0], breaks, [len(chunk)]))
    first, last = edges[:-1], edges[1:]
    runs = np.stack((start[first], offsets[first], offsets[last] - offsets[first]), axis=1)
    owners = chunk[first]
    for owner in dict.fromkeys(owners.tolist()):
        wanted = runs[(owners == owner) & (runs[:, 2] > 0)]
        if len(wanted):
            yield owner, wanted


def _is_steady(rows: npt.NDArray[np.uint32], offsets: npt.NDArray[np.int64]) -> bool:
    """Whether the rows lie one behind the other: the usual case of a small batch, worth a look of its own."""
    return bool((rows[:, 1] == offsets[:-1] + int(rows[0, 1])).all())


def _read(chunk: ChunkRef, runs: npt.NDArray[np.int64], column: memoryview, size: int, checksums: bool) -> ChunkRead:
    others = chunk.num_bytes - int(runs[:, 2].sum())
    whole = checksums or others <= RUN_BYTES * len(runs)  # an unknown size is 0: read whole
    return ChunkRead(chunk, runs, column, whole, size)


def _element_type(field: str, placement: FieldPlacement) -> tuple[torch.dtype, tuple[int, ...]]:
    kinds = {(chunk.dtype, chunk.inner_shape) for chunk in placement.chunks}
    if len(kinds) > 1:
        raise CorruptChunk(
            f"TransferQueue: the chunks of field {field} differ in dtype or inner shape: {sorted(kinds)}"
        )
    name, inner_shape = next(iter(kinds), ("uint8", ()))
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise CorruptChunk(f"TransferQueue: field {field} has the unknown dtype {name!r}")
    return dtype, inner_shape


def _refuse_beyond(field: str, placement: FieldPlacement, size: int) -> None:
    """Before memory is asked for: what the rows say must lie in their chunks (those whose size is known)."""
    rows = placement.rows
    if not len(rows):
        return
    if int(rows[:, 0].max()) >= len(placement.chunks):
        raise CorruptChunk(f"TransferQueue: rows of field {field} lie in a chunk that is not among their chunks")
    room = [max(0, chunk.num_bytes - HEADER_BYTES) if chunk.num_bytes else _NO_BOUND for chunk in placement.chunks]
    ends = (rows[:, 1].astype(np.int64) + rows[:, 2]) * size
    if bool((ends > (room[0] if len(room) == 1 else np.array(room, np.int64)[rows[:, 0]])).any()):
        raise CorruptChunk(f"TransferQueue: rows of field {field} reach beyond the {max(room)} bytes of their chunk")
