"""Where rows lie, and the binary form in which the control Redis stores and returns it.

Pure; for the client (puts, claims), the storage units and the coordinator's side. The Lua side (`lua/rows.lua`) moves
these bytes and reads their fixed places. Imports no torch; malformed bytes raise CorruptChunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rljob_api.wire.identity import WeightId
from rljob_workers.transfer_queue.errors import CorruptChunk

MAX_CHUNK_BYTES = 4 << 20
"""Payload of one chunk: larger values stall a unit's other clients, smaller ones cost a command each."""


MAX_VALUE_BYTES = 512 << 20
"""Redis takes no longer string; a reader refuses a chunk whose description claims more."""


CHUNK_MAGIC = b"RLQC"


CHUNK_FORMAT_VERSION = 1


HEADER_BYTES = 56
"""Of a chunk, before its payload; `chunks` has the layout."""


DTYPE_NAMES = {
    "uint8": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float16": 6,
    "bfloat16": 7,
    "float32": 8,
    "float64": 9,
    "bool": 10,
}
"""Dtype, as torch and numpy name it, and its code, which never changes its meaning."""


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """One stored chunk: a run of rows of one field under one key of one storage unit."""

    unit: int
    """Index into the job's storage units."""
    unit_generation: int
    """Generation that the unit was marked with when the bytes went there."""
    key: str
    """`{epoch}:{incarnation}:{nonce}`; never overwritten."""
    field: str
    first_row: int
    """Row of the `store` call that the chunk begins with (only for the writer; 0 in a claim's answer)."""
    num_rows: int
    dtype: str
    """As in the chunk header, e.g. `int32`."""
    inner_shape: tuple[int, ...] = ()
    num_bytes: int = 0
    """Whole value, header included (0 where unknown)."""


@dataclass(frozen=True, slots=True, eq=False)
class FieldPlacement:
    """Rows of one field, in the order in which they are wanted (or were given)."""

    chunks: tuple[ChunkRef, ...]
    rows: npt.NDArray[np.uint32]
    """[n, 3]: index into `chunks`, offset in the chunk (elements of inner shape, header not counted), length."""


CHUNK_ID_BYTES = 12


ROW = np.dtype([("chunk", "S12"), ("offset", "<u4"), ("length", "<u4"), ("lineage", "<i4"), ("version", "<i4")])
"""28 bytes a row and field. Lineage 0: no weight had a part in it."""


WEIGHTS = np.dtype([("oldest_lineage", "<i4"), ("oldest", "<i4"), ("newest_lineage", "<i4"), ("newest", "<i4")])
"""16 bytes a row: the oldest and the newest weight of its tokens."""


class ChunkIds:
    """Ids of chunks: the incarnation (unique in the job) and a count."""

    def __init__(self, incarnation: str) -> None:
        self._prefix = bytes.fromhex(incarnation)
        self._count = 0

    def draw(self) -> bytes:
        """A new id, 12 bytes."""
        self._count += 1
        return self._prefix + self._count.to_bytes(CHUNK_ID_BYTES - len(self._prefix), "big")


def describe(chunk: ChunkRef) -> str:
    """The chunk as one line; `lua/rows.lua` reads unit and generation from it."""
    shape = ",".join(map(str, chunk.inner_shape))
    return (
        f"{chunk.unit}|{chunk.unit_generation}|{chunk.field}|{chunk.num_rows}|{chunk.dtype}|{shape}"
        f"|{chunk.num_bytes}|{chunk.key}"
    )


def parse_chunk(line: bytes) -> ChunkRef:
    """The reverse of `describe`; raises CorruptChunk for what that never writes."""
    try:
        unit, generation, field, num_rows, dtype, shape, num_bytes, key = line.decode().split("|", 7)
        inner = tuple(int(size) for size in shape.split(",")) if shape else ()
        chunk = ChunkRef(int(unit), int(generation), key, field, 0, int(num_rows), dtype, inner, int(num_bytes))
    except ValueError as error:
        raise _no_chunk(line) from error
    smallest = min(chunk.unit, chunk.unit_generation, chunk.num_rows, chunk.num_bytes - 1, *inner)
    largest = max(chunk.num_bytes, math.prod(max(1, size) for size in inner))
    if smallest < 0 or largest > MAX_VALUE_BYTES:
        raise _no_chunk(line)
    return chunk


def _no_chunk(line: bytes) -> CorruptChunk:
    return CorruptChunk(f"TransferQueue: the control state has {line[:200]!r} where a chunk is described")


def field_arguments(placement: FieldPlacement, ids: ChunkIds, weight: WeightId | None) -> list[bytes | str | int]:
    """A commit's arguments for one field: number of chunks, id and line of each, packed rows."""
    drawn = [ids.draw() for _ in placement.chunks]
    rows = np.zeros(len(placement.rows), ROW)
    rows["chunk"] = np.array(drawn, "S12")[placement.rows[:, 0]] if drawn else b""
    rows["offset"] = placement.rows[:, 1]
    rows["length"] = placement.rows[:, 2]
    rows["lineage"] = weight.lineage if weight else 0
    rows["version"] = weight.version if weight else -1
    arguments: list[bytes | str | int] = [len(drawn)]
    for chunk_id, chunk in zip(drawn, placement.chunks, strict=True):
        arguments += (chunk_id, describe(chunk))
    return [*arguments, rows.tobytes()]


def pack_weights(oldest: Sequence[WeightId], newest: Sequence[WeightId]) -> bytes:
    """Per row, the weights of its oldest and newest token."""
    rows = [
        (first.lineage, first.version, last.lineage, last.version) for first, last in zip(oldest, newest, strict=True)
    ]
    return np.array(rows, WEIGHTS).tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class ClaimedRows:
    """A claim's answer before its bytes are fetched."""

    rollout_id: int
    rows: npt.NDArray[np.uint32]
    oldest: npt.NDArray[np.int64]
    fields: dict[str, FieldPlacement]


def parse_claim(reply: list[bytes], rollout_id: int, fields: Sequence[str]) -> ClaimedRows:
    """From [rows, weights, rows of each field, chunk ids, chunk lines...]; raises CorruptChunk for any other answer."""
    try:
        claimed = _parse_claim(reply, rollout_id, fields)
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise CorruptChunk(
            f"TransferQueue: a claim of rows of train_{rollout_id} was answered wrongly: {error}"
        ) from error
    counts = {len(claimed.oldest), *(len(placement.rows) for placement in claimed.fields.values())}
    if counts != {len(claimed.rows)}:
        what = f"{len(claimed.rows)} rows of train_{rollout_id}"
        raise CorruptChunk(f"TransferQueue: a claim of {what} was answered with {sorted(counts)} rows")
    return claimed


def _parse_claim(reply: list[bytes], rollout_id: int, fields: Sequence[str]) -> ClaimedRows:
    rows = np.frombuffer(reply[0], "<u4")
    weights = np.frombuffer(reply[1], WEIGHTS)
    ids, lines = reply[2 + len(fields)], reply[3 + len(fields) :]
    chunks = {
        ids[place * CHUNK_ID_BYTES : (place + 1) * CHUNK_ID_BYTES]: parse_chunk(line)
        for place, line in enumerate(lines)
    }
    placements = {
        field: _placement(np.frombuffer(packed, ROW), chunks)
        for field, packed in zip(fields, reply[2 : 2 + len(fields)], strict=True)
    }
    return ClaimedRows(rollout_id, rows, weights["oldest"].astype(np.int64), placements)


def _placement(rows: npt.NDArray[np.void], chunks: dict[bytes, ChunkRef]) -> FieldPlacement:
    table = np.empty((len(rows), 3), np.uint32)
    table[:, 1] = rows["offset"]
    table[:, 2] = rows["length"]
    ids = rows["chunk"]
    if len(ids) and (ids == ids[0]).all():
        table[:, 0] = 0
        return FieldPlacement((chunks[_chunk_id(ids[0])],), table)
    names, table[:, 0] = np.unique(ids, return_inverse=True)
    return FieldPlacement(tuple(chunks[_chunk_id(name)] for name in names), table)


def _chunk_id(name: np.bytes_) -> bytes:
    # numpy drops trailing zero bytes of an S12 value.
    return bytes(name).ljust(CHUNK_ID_BYTES, b"\0")
