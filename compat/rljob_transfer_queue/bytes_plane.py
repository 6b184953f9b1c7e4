"""The adapter's side of the data plane: columns to chunks and back, bytes that no row needs.

For `session`, from one thread at a time. Uses `transfer_queue.storage` as it is. Deletes nothing on a server that is
not the queue's own: `unit_marks` knows which those are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from rljob_api.names import Epoch
from rljob_transfer_queue.columns import Column
from rljob_transfer_queue.rows import Places
from rljob_transfer_queue.unit_marks import UnitMarks
from rljob_workers.transfer_queue.errors import RowsLost, StorageUnreachable
from rljob_workers.transfer_queue.resp import RespConnection
from rljob_workers.transfer_queue.row_format import ChunkRef, FieldPlacement, parse_chunk
from rljob_workers.transfer_queue.storage import SLOW_BYTES_PER_SECOND, StorageUnits
from rljob_workers.transfer_queue.units import StorageUnit

_EPOCH = Epoch(0)
MARK_SECONDS = 2.0
"""A put that takes so long, beyond the time for its bytes, checks whether a unit lost its mark."""


class BytesPlane:
    """Storage units of one client."""

    def __init__(self, urls: Sequence[str], incarnation: str, ask: Callable[..., Any]) -> None:
        """Connects when first used; `ask(name, *arguments, what=...)` calls a function of the control plane."""
        self._units = StorageUnits(urls, _EPOCH, incarnation)
        self._singles = [StorageUnit(index, url) for index, url in enumerate(urls)]
        self._marks = UnitMarks(self._singles, ask)

    def meet(self, deadline: float) -> None:
        """Makes sure, on new connections, that these are the queue's storage units; raises Mismatch where not."""
        self._units.close()
        self._marks.check(deadline)

    def close(self) -> None:
        """May be called twice."""
        self._units.close()
        for unit in self._singles:
            unit.close()

    def store(self, columns: Mapping[str, Column], *, deadline: float, waiting: str) -> dict[str, Places]:
        """Stores every column; where they lie is part of the queue once it is committed."""
        jagged = {name: column.jagged for name, column in columns.items()}
        num_bytes = sum(column.values.nbytes for column in jagged.values())
        slow = time.monotonic() + MARK_SECONDS
        until = slow + num_bytes / SLOW_BYTES_PER_SECOND
        try:
            stored = self._units.store(jagged, deadline=min(until, deadline), waiting=waiting)
        except StorageUnreachable:
            self._marks.check(deadline)
            stored = self._units.store(jagged, deadline=deadline, waiting=waiting)
        else:
            if time.monotonic() > slow:
                # Another unit may have taken what one without a mark did not.
                self._marks.check(deadline)
        return {name: Places(stored[name], column.kinds) for name, column in columns.items()}

    def read(self, fields: Mapping[str, Places], *, deadline: float, waiting: str) -> dict[str, list[Column]]:
        """Every field's rows, in one part for each element type; raises RowsLost."""
        wanted: dict[str, FieldPlacement] = {}
        parts: dict[str, list[tuple[str, Places]]] = {}
        for name, places in fields.items():
            parts[name] = []
            for number, part in enumerate(_by_element(places)):
                label = f"{name}|{number}"
                wanted[label] = part.placement
                parts[name].append((label, part))
        try:
            self._require_named([chunk for placement in wanted.values() for chunk in placement.chunks])
            found = self._units.fetch(wanted, deadline=deadline, waiting=waiting)
        except RowsLost:
            # It may not be the rows that are gone: perhaps another server was asked.
            self._marks.check(deadline)
            raise
        return {name: [Column(found[label], part.kinds) for label, part in each] for name, each in parts.items()}

    def delete(self, lines: Sequence[bytes], away: set[int], *, deadline: float) -> list[bool]:
        """Deletes chunks by their lines; for each whether it is gone. Units that do not answer are added to `away`."""
        chunks = [parse_chunk(line) for line in lines]
        # A unit of an earlier list is not the queue's any more, and neither are its bytes.
        named = {chunk.unit for chunk in chunks if chunk.unit < len(self._singles)}
        for unit in named - away:
            keys = [chunk.key for chunk in chunks if chunk.unit == unit]
            try:
                self._marks.require(unit, deadline)
                self._singles[unit].delete(keys, deadline=deadline)
            except StorageUnreachable:
                away.add(unit)
        return [chunk.unit not in away for chunk in chunks]

    def forget(self, stored: Mapping[str, Places], *, deadline: float) -> None:
        """Deletes what was stored and is not committed; a unit that is away loses it when it is back, or in a sweep."""
        chunks = [chunk for places in stored.values() for chunk in places.placement.chunks]
        self._units.delete(chunks, deadline=deadline)

    def idle(self, needed: Set[str], idle_seconds: int, *, deadline: float) -> dict[int, list[str]]:
        """Unit -> keys of chunks that are not among `needed` and were not touched for so long."""
        self._marks.check(deadline)
        found: dict[int, list[str]] = {}
        for unit in self._marks.admitted():
            suspects = [
                key
                for page in unit.scan(deadline=lambda: deadline)
                for key in page
                if key.startswith(f"{_EPOCH}:") and key not in needed
            ]
            found[unit.index] = unit.exchange(
                _idle, suspects, idle_seconds, deadline=deadline, waiting="a sweep asks for the age of its keys"
            )
        return found

    def discard(self, keys: Mapping[int, Sequence[str]], *, deadline: float) -> int:
        """Deletes chunks of each unit; returns how many there were."""
        discarded = 0
        for unit, of_unit in keys.items():
            self._marks.require(unit, deadline)
            discarded += self._singles[unit].delete(of_unit, deadline=deadline)
        return discarded

    def _require_named(self, chunks: Sequence[ChunkRef]) -> None:
        beyond = [chunk for chunk in chunks if chunk.unit >= len(self._singles)]
        if beyond:
            raise RowsLost(
                f"TransferQueue: {len(beyond)} chunks lie on storage units from {len(self._singles)} on, which this"
                " client does not name."
            )


def _by_element(places: Places) -> list[Places]:
    """Parts whose chunks agree in dtype and inner shape; a row is of kind 0 in the parts that do not have it."""
    chunks = places.placement.chunks
    if len({(chunk.dtype, chunk.inner_shape) for chunk in chunks}) <= 1:
        return [places]
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for place, chunk in enumerate(chunks):
        groups.setdefault((chunk.dtype, chunk.inner_shape), []).append(place)
    return [_only(places, chunks, members) for members in groups.values()]


def _only(places: Places, chunks: tuple[ChunkRef, ...], members: Sequence[int]) -> Places:
    table = places.placement.rows.copy()
    mine = np.isin(table[:, 0], members)
    table[mine, 0] = np.searchsorted(members, table[mine, 0])
    table[~mine] = 0
    return Places(FieldPlacement(tuple(chunks[place] for place in members), table), np.where(mine, places.kinds, 0))


def _idle(connection: RespConnection, deadline: float, keys: Sequence[str], idle_seconds: int) -> list[str]:
    idle = []
    for key in keys:
        found = connection.call(b"OBJECT", b"IDLETIME", key.encode(), deadline=deadline)
        if isinstance(found, int) and found >= idle_seconds:
            idle.append(key)
    return idle
