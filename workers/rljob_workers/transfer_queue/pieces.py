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

from rljob_workers.transfer_queue.chunks import MAX_CHUNK_BYTES, element_bytes, encode_chunk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rljob_workers.transfer_queue.jagged import Jagged

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
    payload: memoryview

    @property
    def num_bytes(self) -> int:
        """Of the whole chunk."""
        return len(self.header) + self.payload.nbytes


def cut_columns(columns: Mapping[str, Jagged], num_units: int) -> list[Piece]:
    """Cuts every field into runs of rows of at most `MAX_CHUNK_BYTES` (a longer row is a piece of its own)."""
    total = sum(column.values.nbytes for column in columns.values())
    wanted = MAX_CHUNK_BYTES if total <= SPREAD_BYTES else -(-total // (2 * num_units))
    limit = min(MAX_CHUNK_BYTES, max(SPREAD_BYTES, wanted))
    return [piece for field, column in columns.items() for piece in _cut(field, column, limit)]


def _cut(field: str, column: Jagged, limit: int) -> list[Piece]:
    inner_shape = tuple(column.values.shape[1:])
    offsets = column.offsets.numpy()
    edges = _edges(offsets * element_bytes(column.values.dtype, inner_shape), limit)
    pieces = []
    for first, last in itertools.pairwise(edges):
        header, payload = encode_chunk(column.values[int(offsets[first]) : int(offsets[last])], last - first)
        dtype = str(column.values.dtype).removeprefix("torch.")
        pieces.append(Piece(field, first, last - first, dtype, inner_shape, header, payload))
    return pieces


def _edges(ends: npt.NDArray[np.int64], limit: int) -> list[int]:
    """Rows at which to cut, so that no piece has more than `limit` bytes unless it is one row."""
    num_rows = len(ends) - 1
    edges = [0]
    while edges[-1] < num_rows:
        first = edges[-1]
        last = int(np.searchsorted(ends, ends[first] + limit, side="right")) - 1
        edges.append(min(max(last, first + 1), num_rows))
    return edges


def row_table(column: Jagged, edges: Sequence[int]) -> npt.NDArray[np.uint32]:
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
