"""Chunks over one connection: reads are planned, many chunks share a round trip, bytes go from and into tensors.

For `storage` only, inside an exchange with one unit. Fetched columns lie in pooled buffers: a new buffer costs a page
fault for every 4 KiB, often more than the bytes. Replies are taken in the order of the commands; an exception leaves
some behind, and the exchange then closes the connection.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.chunks import (
    DTYPES,
    ChunkHeader,
    decode_header,
    element_bytes,
    verify_payload,
)
from rljob_workers.transfer_queue.errors import CorruptChunk
from rljob_workers.transfer_queue.resp import ErrorReply, RespConnection
from rljob_workers.transfer_queue.row_format import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rljob_workers.transfer_queue.chunks import Piece
    from rljob_workers.transfer_queue.row_format import ChunkRef, FieldPlacement


POOLED_BYTES = 1 << 16
"""Smaller buffers are the allocator's, which reuses such sizes itself."""


_STEPS = 8
"""Sizes between two powers of two: at most an eighth of a buffer is not used."""


Buffer: TypeAlias = npt.NDArray[np.uint8]


class BufferPool:
    """Buffers of one process. Free ones are kept only as far as so many bytes were once lent at the same time.

    A buffer may be dropped in any thread; `lend` is called from one.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Buffer]] = {}
        # A finalizer may run in the middle of anything: it only appends, which is atomic.
        self._returned: deque[Buffer] = deque()
        self._free_bytes = 0
        self._lent_bytes = 0
        self._peak_bytes = 0

    @property
    def free_bytes(self) -> int:
        """Bytes of free buffers."""
        self._take_back()
        return self._free_bytes

    def lend(self, num_bytes: int) -> Buffer:
        """An uninitialised array of `num_bytes`; whatever is made of it keeps the memory, and nothing else does."""
        if num_bytes < POOLED_BYTES:
            return np.empty(num_bytes, np.uint8)
        self._take_back()
        size = _rounded(num_bytes)
        free = self._free.get(size)
        if free:
            block = free.pop()
            self._free_bytes -= size
        else:
            self._make_room(size)
            block = np.empty(size, np.uint8)
        self._lent_bytes += size
        self._peak_bytes = max(self._peak_bytes, self._lent_bytes)
        lent = block[:num_bytes]
        # At exit memory need not come back.
        weakref.finalize(lent, self._returned.append, block).atexit = False
        return lent

    def _take_back(self) -> None:
        for block in _drained(self._returned):
            self._lent_bytes -= block.nbytes
            self._free_bytes += block.nbytes
            self._free.setdefault(block.nbytes, []).append(block)

    def _make_room(self, size: int) -> None:
        """Lets go of buffers of other sizes, so that lent and free ones together never pass the peak."""
        for other in list(self._free):
            blocks = self._free[other]
            while blocks and self._lent_bytes + self._free_bytes + size > self._peak_bytes:
                self._free_bytes -= blocks.pop().nbytes
            if not blocks:
                del self._free[other]


def _drained(returned: deque[Buffer]) -> Iterator[Buffer]:
    while returned:
        yield returned.popleft()


def _rounded(num_bytes: int) -> int:
    step = (1 << (num_bytes.bit_length() - 1)) // _STEPS
    return -(-num_bytes // step) * step


RUN_BYTES = 1 << 14
"""What a command of its own costs, in bytes: a chunk is read whole where its other bytes cost less than its runs do."""


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
    wanted_bytes: int
    """Sum of the runs."""

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
    view = memoryview(buffer)  # type: ignore[arg-type]  # an array is a buffer; only Python 3.12 has a type for it
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
    """Whether the rows lie one behind the other: the usual case of a small batch, which needs no search for runs."""
    return bool((rows[:, 1] == offsets[:-1] + int(rows[0, 1])).all())


def _read(chunk: ChunkRef, runs: npt.NDArray[np.int64], column: memoryview, size: int, checksums: bool) -> ChunkRead:
    wanted = int(runs[:, 2].sum())
    whole = checksums or chunk.num_bytes - wanted <= RUN_BYTES * len(runs)  # an unknown size is 0: read whole
    return ChunkRead(chunk, runs, column, whole, size, wanted)


def _element_type(field: str, placement: FieldPlacement) -> tuple[torch.dtype, tuple[int, ...]]:
    kinds = {(chunk.dtype, chunk.inner_shape) for chunk in placement.chunks}
    if len(kinds) > 1:
        raise CorruptChunk(
            f"TransferQueue: the chunks of field {field} differ in dtype or inner shape: {sorted(kinds)}"
        )
    name, inner_shape = next(iter(kinds), ("uint8", ()))
    dtype = DTYPES.get(name)
    if dtype is None:
        raise CorruptChunk(f"TransferQueue: field {field} has the unknown dtype {name!r}")
    return dtype, inner_shape


def _refuse_beyond(field: str, placement: FieldPlacement, size: int) -> None:
    """Checked before memory is allocated: rows must end within their chunks (those whose size is known)."""
    rows = placement.rows
    if not len(rows):
        return
    if int(rows[:, 0].max()) >= len(placement.chunks):
        raise CorruptChunk(f"TransferQueue: rows of field {field} lie in a chunk that is not among their chunks")
    room = [max(0, chunk.num_bytes - HEADER_BYTES) if chunk.num_bytes else _NO_BOUND for chunk in placement.chunks]
    ends = (rows[:, 1].astype(np.int64) + rows[:, 2]) * size
    if bool((ends > (room[0] if len(room) == 1 else np.array(room, np.int64)[rows[:, 0]])).any()):
        raise CorruptChunk(f"TransferQueue: rows of field {field} reach beyond the {max(room)} bytes of their chunk")


WINDOW_BYTES = 4 << 20
"""So much is under way while the next command goes out: enough to keep both sides at work, and more only fills the
server's buffers."""


def write_chunks(connection: RespConnection, refs: Mapping[Piece, ChunkRef], until: float) -> bool:
    """Stores every piece; False when the unit is out of memory. All replies are taken."""
    has_room = True
    under_way: deque[int] = deque()
    num_bytes = 0
    for piece, ref in refs.items():
        connection.command(b"SET", ref.key.encode(), last=(piece.header, *piece.payload))
        under_way.append(piece.num_bytes)
        num_bytes += piece.num_bytes
        if num_bytes < WINDOW_BYTES:
            continue
        while len(under_way) > 1 and num_bytes > WINDOW_BYTES:
            has_room = _confirm(connection, 1, until) and has_room
            num_bytes -= under_way.popleft()
    return _confirm(connection, len(under_way), until) and has_room


def _confirm(connection: RespConnection, pending: int, until: float) -> bool:
    has_room = True
    for _ in range(pending):
        try:
            connection.read(until)
        except ErrorReply as error:
            if not str(error).startswith("OOM"):
                raise
            has_room = False
    return has_room


def read_chunks(
    connection: RespConnection, until: float, reads: Sequence[ChunkRead], known: set[str]
) -> list[ChunkRef]:
    """Fills the targets of all reads; returns the chunks that are not there.

    `known`: keys of chunks whose header was read, added to here. Chunks never change: one read of it is enough.
    """
    missing: list[ChunkRef] = []
    asked: deque[tuple[ChunkRead, bool]] = deque()
    num_bytes = 0
    for read in reads:
        asked.append((read, _ask(connection, read, known)))
        num_bytes += read.wanted_bytes
        if num_bytes < WINDOW_BYTES:
            continue
        while len(asked) > 1 and num_bytes > WINDOW_BYTES:
            num_bytes -= asked[0][0].wanted_bytes
            missing += _take(connection, *asked.popleft(), until, known)
    for read, has_header in asked:
        missing += _take(connection, read, has_header, until, known)
    return missing


def _ask(connection: RespConnection, read: ChunkRead, known: set[str]) -> bool:
    """Whether a reply with the header alone comes before those of the parts."""
    key = read.chunk.key.encode()
    if read.whole:
        connection.command(b"GET", key)
        return False
    is_new = read.chunk.key not in known
    if is_new:
        connection.command(b"GETRANGE", key, b"0", b"%d" % (HEADER_BYTES - 1))
    for start, _, length in read.runs.tolist():
        first = HEADER_BYTES + start
        connection.command(b"GETRANGE", key, b"%d" % first, b"%d" % (first + length - 1))
    return is_new


def _take(
    connection: RespConnection, read: ChunkRead, has_header: bool, until: float, known: set[str]
) -> list[ChunkRef]:
    """The chunk if it is not there. Takes all replies of this read unless it raises."""
    try:
        if read.whole:
            return [] if _take_whole(connection, read, until) else [read.chunk]
        there = not has_header or _take_header_alone(connection, read, until, known)
        return [] if _take_parts(connection, read, until) and there else [read.chunk]
    except CorruptChunk as error:
        error.chunk = read.chunk
        raise


def _take_whole(connection: RespConnection, read: ChunkRead, until: float) -> bool:
    found = connection.begin_bulk(until, HEADER_BYTES)
    if found is None:
        return False
    size, head = found
    if read.chunk.num_bytes and size != read.chunk.num_bytes:
        raise CorruptChunk(
            f"TransferQueue: chunk {read.chunk.key} of {read.chunk.field} has {size} bytes, the queue says"
            f" {read.chunk.num_bytes} bytes"
        )
    header = _header_of(read.chunk, head)
    if header.num_bytes != size - HEADER_BYTES:
        raise CorruptChunk(
            f"TransferQueue: chunk {read.chunk.key} of {read.chunk.field} has {size} bytes, its header says"
            f" {header.num_bytes + HEADER_BYTES} bytes"
        )
    target = read.sole_target(header.num_bytes)
    payload = memoryview(bytearray(header.num_bytes)) if target is None else target
    connection.read_into(payload, until)
    verify_payload(header, payload)
    if target is None:
        _refuse_short(read, header)
        read.scatter(payload)
    return True


def _take_header_alone(connection: RespConnection, read: ChunkRead, until: float, known: set[str]) -> bool:
    found = connection.begin_bulk(until, HEADER_BYTES)
    if found is None or not found[0]:
        return False
    _refuse_short(read, _header_of(read.chunk, found[1]))
    known.add(read.chunk.key)
    return True


def _take_parts(connection: RespConnection, read: ChunkRead, until: float) -> bool:
    """Parts have no checksum of their own: it is only checked that every part is there."""
    there = True
    for _, place, length in read.runs.tolist():
        found = connection.begin_bulk(until)
        if found is None or not found[0]:
            there = False
            continue
        if found[0] != length:
            raise _too_short(read.chunk)
        connection.read_into(read.column[place : place + length], until)
    return there


def _refuse_short(read: ChunkRead, header: ChunkHeader) -> None:
    if int((read.runs[:, 0] + read.runs[:, 2]).max()) > header.num_bytes:
        raise _too_short(read.chunk)


def _header_of(chunk: ChunkRef, head: bytes) -> ChunkHeader:
    header = decode_header(head)
    dtype = str(header.dtype).removeprefix("torch.")
    if (dtype, header.inner_shape) != (chunk.dtype, chunk.inner_shape):
        raise CorruptChunk(
            f"TransferQueue: chunk {chunk.key} of {chunk.field} holds {dtype}{list(header.inner_shape)}, the queue says"
            f" {chunk.dtype}{list(chunk.inner_shape)}"
        )
    return header


def _too_short(chunk: ChunkRef) -> CorruptChunk:
    return CorruptChunk(f"TransferQueue: chunk {chunk.key} of {chunk.field} is shorter than the rows that lie in it")
