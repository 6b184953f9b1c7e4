"""Rows of the queue one by one, with some of their values, for `rljob queue peek`.

For the coordinator only. Changes nothing: reads where rows lie from the control Redis, and a few bytes of them from the
storage units. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rljob_api.names import Lineage, RolloutId, WeightVersion, partition_name
from rljob_api.wire.queue import QueuePeek, QueueRow, RowState, RowValues, WeightSpan
from rljob_workers.transfer_queue.admin_calls import AdminCalls
from rljob_workers.transfer_queue.errors import CorruptChunk
from rljob_workers.transfer_queue.resp import RespConnection
from rljob_workers.transfer_queue.row_format import (
    CHUNK_FORMAT_VERSION,
    CHUNK_ID_BYTES,
    CHUNK_MAGIC,
    DTYPE_NAMES,
    HEADER_BYTES,
    ROW,
    WEIGHTS,
    ChunkRef,
    parse_chunk,
)

_CHUNK_BEGINS = CHUNK_MAGIC + bytes([CHUNK_FORMAT_VERSION])


_WAITING = "somebody looks at rows"


_LETTERS = {"u": RowState.UNREADY, "r": RowState.READY, "c": RowState.CLAIMED, "d": RowState.DONE}


_GROUPS = {"p": "put", "i": "issued", "w": "returned", "a": "absent"}


_BFLOAT16 = "bfloat16"


@dataclass(frozen=True, slots=True)
class RowQuery:
    """Which rows to read, and how much of them."""

    partitions: Sequence[RolloutId]
    """In this order, until there are `limit` rows."""
    first: int = 0
    """Row of the first partition to begin with."""
    limit: int = 10
    task: str | None = None
    """Only rows that this task has in `state`."""
    state: RowState | None = None
    field: str | None = None
    """Whose values to read."""
    num_values: int = 8


class QueuePeeking:
    """Rows of one queue."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls
        self._fields = calls.shape.fields

    @property
    def fields(self) -> tuple[str, ...]:
        """That a row may have."""
        return self._fields

    @property
    def tasks(self) -> tuple[str, ...]:
        """The consumers."""
        return tuple(task.name for task in self._calls.shape.tasks)

    def rows(self, query: RowQuery) -> QueuePeek:
        """The rows, read partition after partition; what moves meanwhile may be shown as it was or as it is."""
        found: list[QueueRow] = []
        first = query.first
        for rollout_id in query.partitions:
            found += self._rows_of(rollout_id, query, first, query.limit + 1 - len(found))
            first = 0
            if len(found) > query.limit:
                return QueuePeek(rows=found[: query.limit], more=True)
        return QueuePeek(rows=found, more=False)

    def _rows_of(self, rollout_id: RolloutId, query: RowQuery, first: int, limit: int) -> list[QueueRow]:
        letter = next((letter for letter, state in _LETTERS.items() if state is query.state), "")
        reply = self._calls.read(
            "inspect_rows", rollout_id, first, limit, query.task or "", letter, query.field or "", waiting=_WAITING
        )
        if not reply:
            return []
        answer = _Rows.parse(reply, len(self._calls.shape.tasks), self._fields)
        rows = [self._row(rollout_id, answer, place) for place in range(len(answer.rows))]
        if query.field is None:
            return rows
        shown = query.limit if limit > query.limit else limit - 1
        values = self._values(answer, query.field, min(shown, len(rows)), query.num_values)
        return [row.model_copy(update={"field": values.get(place)}) for place, row in enumerate(rows)]

    def _row(self, rollout_id: RolloutId, answer: _Rows, place: int) -> QueueRow:
        shape, row = self._calls.shape, int(answer.rows[place])
        has = [field for bit, field in enumerate(self._fields) if int(answer.masks[place]) >> bit & 1]
        weights = answer.weights[place]
        made = bool(set(has) & set(shape.generated_fields))
        return QueueRow(
            partition=partition_name(rollout_id),
            row=row,
            group=row // shape.samples_per_prompt,
            group_state=_GROUPS.get(answer.groups[place : place + 1].decode(), "missing"),
            lengths={field: int(answer.places[field][place]["length"]) for field in has},
            states={
                task.name: _LETTERS.get(states[place : place + 1].decode(), RowState.UNREADY)
                for task, states in zip(shape.tasks, answer.states, strict=True)
            },
            oldest=_span(weights["oldest_lineage"], weights["oldest"]) if made else None,
            newest=_span(weights["newest_lineage"], weights["newest"]) if made else None,
        )

    def _values(self, answer: _Rows, field: str, num_rows: int, num_values: int) -> dict[int, RowValues]:
        bit = self._fields.index(field)
        wanted: dict[int, list[tuple[int, ChunkRef]]] = {}
        for place in range(num_rows):
            chunk = answer.chunk_of(field, place)
            if int(answer.masks[place]) >> bit & 1 and chunk is not None and chunk.unit < len(self._calls.units):
                wanted.setdefault(chunk.unit, []).append((place, chunk))
        values: dict[int, RowValues] = {}
        for unit, asked in wanted.items():
            parts = [_part(answer.places[field][place], chunk, num_values) for place, chunk in asked]
            with self._calls.lock:
                found = self._calls.units[unit].exchange(
                    _read_parts,
                    parts,
                    deadline=self._calls.deadline(),
                    waiting=f"somebody looks at {field}",
                )
            for (place, chunk), part, data in zip(asked, parts, found, strict=True):
                values[place] = _shown(chunk, part, data)
        return values


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The answer of `inspect_rows`."""

    rows: npt.NDArray[np.uint32]
    masks: npt.NDArray[np.uint32]
    weights: npt.NDArray[np.void]
    groups: bytes
    states: Sequence[bytes]
    places: dict[str, npt.NDArray[np.void]]
    chunks: dict[bytes, ChunkRef]

    @classmethod
    def parse(cls, reply: Sequence[bytes], num_tasks: int, fields: Sequence[str]) -> _Rows:
        at = 4 + num_tasks
        places = {field: np.frombuffer(reply[at + bit], ROW) for bit, field in enumerate(fields)}
        named = reply[at + len(fields) :]
        chunks = {name: parse_chunk(line) for name, line in zip(named[::2], named[1::2], strict=True)}
        return cls(
            rows=np.frombuffer(reply[0], "<u4"),
            masks=np.frombuffer(reply[1], "<u4"),
            weights=np.frombuffer(reply[2], WEIGHTS),
            groups=reply[3],
            states=reply[4:at],
            places=places,
            chunks=chunks,
        )

    def chunk_of(self, field: str, place: int) -> ChunkRef | None:
        name = bytes(self.places[field][place]["chunk"])
        return self.chunks.get(name.ljust(CHUNK_ID_BYTES, b"\0"))


@dataclass(frozen=True, slots=True)
class _Part:
    """The bytes of a row that are shown."""

    key: str
    start: int
    num_bytes: int
    length: int
    """Elements of the whole row."""


def _span(lineage: int, version: int) -> WeightSpan:
    return WeightSpan(lineage=Lineage(int(lineage)), version=WeightVersion(int(version)))


def _item_bytes(dtype: str) -> int:
    if dtype not in DTYPE_NAMES:
        raise CorruptChunk(f"TransferQueue: {dtype!r} is no dtype of a chunk")
    return 2 if dtype == _BFLOAT16 else np.dtype(dtype).itemsize


def _part(place: np.void, chunk: ChunkRef, num_values: int) -> _Part:
    length, inner = int(place["length"]), math.prod(chunk.inner_shape)
    item = _item_bytes(chunk.dtype)
    start = HEADER_BYTES + int(place["offset"]) * inner * item
    return _Part(chunk.key, start, min(num_values, length * inner) * item, length)


def _read_parts(connection: RespConnection, until: float, parts: Sequence[_Part]) -> list[bytes | None]:
    """Of every part its bytes; None where the chunk is gone."""
    for part in parts:
        key = part.key.encode()
        connection.command(b"GETRANGE", key, b"0", b"%d" % (len(_CHUNK_BEGINS) - 1))
        connection.command(b"GETRANGE", key, b"%d" % part.start, b"%d" % (part.start + max(part.num_bytes, 1) - 1))
    found: list[bytes | None] = []
    for part in parts:
        head, data = connection.read(until), connection.read(until)
        assert isinstance(head, bytes)
        assert isinstance(data, bytes)
        if head and head != _CHUNK_BEGINS:
            raise CorruptChunk(f"TransferQueue: chunk {part.key} begins with {head!r}")
        found.append(data[: part.num_bytes] if head else None)
    return found


def _shown(chunk: ChunkRef, part: _Part, data: bytes | None) -> RowValues:
    values = None if data is None else list(_numbers(chunk.dtype, data))
    return RowValues(length=part.length, shape=list(chunk.inner_shape), dtype=chunk.dtype, values=values)


def _numbers(dtype: str, data: bytes) -> Iterator[int | float | bool | None]:
    """As JSON has them: None for what is no finite number."""
    whole = data[: len(data) - len(data) % _item_bytes(dtype)]
    if dtype == _BFLOAT16:
        array = (np.frombuffer(whole, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        array = np.frombuffer(whole, dtype)
    for value in array.tolist():
        yield value if not isinstance(value, float) or math.isfinite(value) else None
