"""Cutting columns into pieces, each of which becomes one chunk, and dealing them out to storage units. Pure.

For `storage` only. A small put makes one piece per field, all for one unit (one round trip); a big one is cut so that
all units carry about the same bytes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rljob_workers.transfer_queue.chunks import (
    HEADER_BYTES,
    ChunkHeader,
    element_bytes,
    encode_header,
    payload_checksum,
    raw_bytes,
)
from rljob_workers.transfer_queue.jagged import refuse_misfit
from rljob_workers.transfer_queue.placement import MAX_CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rljob_workers.transfer_queue.jagged import Column, Jagged

SPREAD_BYTES = 1 << 20
"""Below this a second unit costs more round trips than its bandwidth saves."""
MAX_VALUE_BYTES = 512 << 20
"""Of one Redis string."""


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
    payload_bytes: int

    @property
    def num_bytes(self) -> int:
        """Of the whole chunk."""
        return len(self.header) + self.payload_bytes


def cut_columns(columns: Mapping[str, Column], num_units: int, *, checksums: bool) -> list[Piece]:
    """Cuts every field into runs of rows of at most `MAX_CHUNK_BYTES` (a longer row is a piece of its own).

    Raises ValueError for a row that no server takes, and where offsets do not fit their values.
    """
    total = sum(part.values.nbytes for column in columns.values() for part in column.parts)
    wanted = MAX_CHUNK_BYTES if total <= SPREAD_BYTES else -(-total // (2 * num_units))
    limit = min(MAX_CHUNK_BYTES, max(SPREAD_BYTES, wanted))
    return [piece for field, column in columns.items() for piece in _cut(field, column, limit, checksums)]


def _cut(field: str, column: Column, limit: int, checksums: bool) -> list[Piece]:
    values = column.parts[0].values
    inner_shape = tuple(values.shape[1:])
    dtype = str(values.dtype).removeprefix("torch.")
    offsets, num_values = column.offsets.numpy(), sum(part.values.shape[0] for part in column.parts)
    refuse_misfit(field, num_values, int(offsets[0]), int(offsets[-1]))
    ends = offsets * element_bytes(values.dtype, inner_shape)
    edges = _edges(ends, limit)
    pieces = []
    for (first, last), payload in zip(itertools.pairwise(edges), _payloads(column.parts, ends[edges]), strict=True):
        num_bytes = int(ends[last] - ends[first])
        if num_bytes > MAX_VALUE_BYTES - HEADER_BYTES:
            raise ValueError(
                f"TransferQueue: row {first} of {field} has {num_bytes} bytes, a value in Redis has at most"
                f" {MAX_VALUE_BYTES}. Cut the row into several fields."
            )
        checksum = payload_checksum(payload) if checksums else None
        header = encode_header(ChunkHeader(values.dtype, inner_shape, last - first, num_bytes, checksum))
        pieces.append(Piece(field, first, last - first, dtype, inner_shape, header, payload, num_bytes))
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


def row_table(column: Column, edges: Sequence[int]) -> npt.NDArray[np.uint32]:
    """[rows, 3]: piece, offset in the piece (elements), length; `edges` are the pieces' first rows."""
    offsets = column.offsets.numpy()
    table = np.empty((len(column), 3), np.uint32)
    firsts = np.asarray(edges, np.int64)
    table[:, 0] = np.searchsorted(firsts, np.arange(len(column)), side="right") - 1
    table[:, 1] = offsets[:-1] - offsets[firsts[table[:, 0]]]
    table[:, 2] = np.diff(offsets)
    return table


def deal(pieces: Sequence[Piece], units: Sequence[int]) -> dict[int, list[Piece]]:
    """Unit -> its pieces. `units` in order of preference: all go to the first unless the bytes are worth spreading."""
    if sum(piece.num_bytes for piece in pieces) <= SPREAD_BYTES:
        return {units[0]: list(pieces)}
    dealt: dict[int, list[Piece]] = {unit: [] for unit in units}
    load = dict.fromkeys(units, 0)
    for piece in sorted(pieces, key=lambda each: -each.num_bytes):
        unit = min(units, key=lambda each: load[each])
        dealt[unit].append(piece)
        load[unit] += piece.num_bytes
    return {unit: share for unit, share in dealt.items() if share}
