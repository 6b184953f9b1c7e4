"""The binary form of rows on the adapter's control plane: numbers as runs, entries of fields, documents.

Pure. For `session`; the Lua side (`lua/`) only moves these bytes and reads their fixed places.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rljob_workers.transfer_queue.row_format import (
    CHUNK_ID_BYTES,
    ChunkIds,
    ChunkRef,
    FieldPlacement,
    describe,
    parse_chunk,
)

PAGE_ROWS = 256
"""As in `lua/state.lua`."""
ENTRY = np.dtype([("chunk", "S12"), ("offset", "<u4"), ("length", "<u4"), ("kind", "<u4")])
"""24 bytes a row and field; kind 0: the row does not have the field."""
_RUN = np.dtype([("first", "<u8"), ("count", "<u4")])
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the rows of one field lie, and what kind of value each is (0: none)."""

    placement: FieldPlacement
    kinds: npt.NDArray[np.uint32]

    def select(self, indices: Sequence[int]) -> Places:
        """The rows at `indices`."""
        chosen = np.asarray(indices, np.int64)
        return Places(FieldPlacement(self.placement.chunks, self.placement.rows[chosen]), self.kinds[chosen])

    @classmethod
    def concat(cls, parts: Sequence[Places]) -> Places:
        """The rows of all parts, in order."""
        first = 0
        tables = []
        for part in parts:
            table = part.placement.rows.copy()
            table[:, 0] += first
            first += len(part.placement.chunks)
            tables.append(table)
        chunks = tuple(chunk for part in parts for chunk in part.placement.chunks)
        return cls(FieldPlacement(chunks, np.concatenate(tables)), np.concatenate([part.kinds for part in parts]))


def pack_runs(numbers: Sequence[int]) -> bytes:
    """Row numbers as runs of neighbours."""
    rows = np.asarray(numbers, np.int64)
    if not len(rows):
        return b""
    edges = np.flatnonzero(np.diff(rows) != 1) + 1
    firsts = np.concatenate(([0], edges))
    runs = np.empty(len(firsts), _RUN)
    runs["first"] = rows[firsts]
    runs["count"] = np.diff(np.concatenate((firsts, [len(rows)])))
    return runs.tobytes()


def unpack_runs(packed: bytes) -> list[int]:
    """The reverse."""
    return [number for first, count in np.frombuffer(packed, _RUN).tolist() for number in range(first, first + count)]


def numbers_at(places: npt.NDArray[np.int64], pages: bytes) -> list[int]:
    """The numbers of rows at places of a partition; `pages` is its table."""
    table = np.frombuffer(pages, "<u8").astype(np.int64)
    numbers: list[int] = (table[places // PAGE_ROWS] * PAGE_ROWS + places % PAGE_ROWS).tolist()
    return numbers


def pack_documents(documents: Sequence[bytes]) -> bytes:
    """Each with its length in front."""
    return b"".join(_LENGTH.pack(len(document)) + document for document in documents)


def unpack_documents(packed: bytes) -> list[bytes]:
    """The reverse; nothing where no row has one."""
    documents, at = [], 0
    while at < len(packed):
        (length,) = _LENGTH.unpack_from(packed, at)
        documents.append(packed[at + _LENGTH.size : at + _LENGTH.size + length])
        at += _LENGTH.size + length
    return documents


def field_arguments(name: str, places: Places, ids: ChunkIds) -> list[bytes | str | int]:
    """A commit's arguments for one field: its name, number of chunks, id and line of each, the rows' entries."""
    drawn = [ids.draw() for _ in places.placement.chunks]
    entries = np.empty(len(places.kinds), ENTRY)
    entries["chunk"] = np.array(drawn, "S12")[places.placement.rows[:, 0]]
    entries["offset"] = places.placement.rows[:, 1]
    entries["length"] = places.placement.rows[:, 2]
    entries["kind"] = places.kinds
    arguments: list[bytes | str | int] = [name, len(drawn)]
    for chunk_id, chunk in zip(drawn, places.placement.chunks, strict=True):
        arguments += (chunk_id, describe(chunk))
    return [*arguments, entries.tobytes()]


def parse_places(fields: Sequence[str], reply: Sequence[bytes]) -> dict[str, Places]:
    """From [entries of each field, chunk ids, chunk lines...]."""
    ids, lines = reply[len(fields)], reply[len(fields) + 1 :]
    chunks = {
        ids[place * CHUNK_ID_BYTES : (place + 1) * CHUNK_ID_BYTES]: parse_chunk(line)
        for place, line in enumerate(lines)
        if line
    }
    return {field: _places(packed, chunks) for field, packed in zip(fields, reply, strict=False)}


def _places(packed: bytes, chunks: Mapping[bytes, ChunkRef]) -> Places:
    entries = np.frombuffer(packed, ENTRY)
    names, ordinals = np.unique(entries["chunk"], return_inverse=True)
    # numpy drops trailing zero bytes of an S12 value.
    wanted = [bytes(name).ljust(CHUNK_ID_BYTES, b"\0") for name in names]
    known = [chunk for name in wanted if (chunk := chunks.get(name)) is not None]
    # A row without the field has an id of zeros, which sorts first.
    missing = len(wanted) - len(known)
    table = np.empty((len(entries), 3), np.uint32)
    table[:, 0] = np.maximum(ordinals - missing, 0)
    table[:, 1] = entries["offset"]
    table[:, 2] = entries["length"]
    return Places(FieldPlacement(tuple(known), table), entries["kind"].copy())
