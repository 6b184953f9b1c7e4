"""Chunks whose stored bytes are damaged: proven by reading them twice, told, and deleted; their rows are made again.

For `claims` only. Nothing is deleted that was damaged on its way to us: both readings, each over a connection of its
own, must say the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rljob_workers.transfer_queue.errors import CorruptChunk, RowsLost
from rljob_workers.transfer_queue.jagged import Jagged
from rljob_workers.transfer_queue.life_access import LifeAccess
from rljob_workers.transfer_queue.placement import ChunkRef, FieldPlacement

_LOG = logging.getLogger("rljob.queue")


@dataclass(frozen=True, slots=True)
class _Damage:
    chunk: ChunkRef
    what: str


def fetch_undamaged(
    access: LifeAccess, fields: Mapping[str, FieldPlacement], *, deadline: float, waiting: str
) -> dict[str, Jagged]:
    """The rows of every field. A damaged chunk is lost: it is deleted and told in the RowsLost that this raises.

    Raises CorruptChunk where the bytes come damaged and differently each time, or the control state itself is odd.
    """
    try:
        return access.units.fetch(fields, deadline=deadline, waiting=waiting)
    except CorruptChunk as error:
        if error.chunk is None:
            raise
    damaged = [
        _Damage(single.chunks[0], what)
        for field, single in _one_by_one(fields)
        if (what := _read_twice(access, {field: single}, deadline, waiting)) is not None
    ]
    if not damaged:
        return access.units.fetch(fields, deadline=deadline, waiting=waiting)
    lost = _lost(access, damaged, waiting)
    _LOG.error("%s", lost)
    access.units.delete([one.chunk for one in damaged], deadline=deadline)
    raise lost


def _one_by_one(fields: Mapping[str, FieldPlacement]) -> Iterator[tuple[str, FieldPlacement]]:
    """Every chunk by itself, with the rows that lie in it."""
    for field, placement in fields.items():
        for place, chunk in enumerate(placement.chunks):
            rows = placement.rows[placement.rows[:, 0] == place]  # a copy
            rows[:, 0] = 0
            yield field, FieldPlacement((chunk,), rows)


def _read_twice(access: LifeAccess, single: Mapping[str, FieldPlacement], deadline: float, waiting: str) -> str | None:
    """What is wrong with the stored chunk; None where a reading was right, or it came damaged in two ways."""
    said = set()
    for _ in range(2):
        try:
            access.units.fetch(single, deadline=deadline, waiting=waiting)
        except CorruptChunk as error:
            said.add(str(error).removeprefix("TransferQueue: "))
        except RowsLost:
            return None  # another reader was faster; the next reading of all finds it gone
        else:
            return None
    return said.pop() if len(said) == 1 else None


def _lost(access: LifeAccess, damaged: list[_Damage], waiting: str) -> RowsLost:
    first, more = damaged[0], len(damaged) - 1
    others = f" ({more} more of {', '.join(sorted({one.chunk.field for one in damaged}))})" if more else ""
    return RowsLost(
        f"TransferQueue: {access.units.name_of(first.chunk.unit)} keeps chunk {first.chunk.key} of {first.chunk.field}"
        f" damaged{others}, as two readings say: {first.what}; {waiting}. It is deleted, and the coordinator"
        " decides what is computed or generated again. Check the memory of that server.",
        sorted({one.chunk.unit for one in damaged}),
    )
