"""Sweeping: bytes that nothing names are deleted; names of bytes that are nowhere are found.

For the queue admin only. What is deleted can be named by nobody any more: garbage of the control state, and chunks of
ended lives without a commit. A unit that does not answer is passed by: what it has waits for it, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rljob_workers.transfer_queue.admin_access import AdminAccess
from rljob_workers.transfer_queue.control.connection import Argument
from rljob_workers.transfer_queue.control.rows import parse_chunk
from rljob_workers.transfer_queue.errors import StorageUnreachable
from rljob_workers.transfer_queue.inspection import UnitFigures
from rljob_workers.transfer_queue.naming import Named, chunks_of, partitions
from rljob_workers.transfer_queue.units import StorageUnit

CHUNKS_AT_ONCE = 1000
"""In one call: each ends within milliseconds."""
PAGES_AT_ONCE = 16
"""In one sweep: who sweeps has other things to do, too."""
_WAITING = "a sweep"


@dataclass(frozen=True, slots=True)
class Swept:
    """What `sweep` deleted."""

    chunks: int
    orphans: int
    """Chunks of ended lives that no commit names; looked for when there is no more garbage."""
    partitions: int
    has_more: bool
    """Garbage that the next sweep can delete."""


@dataclass(frozen=True, slots=True)
class _Page:
    """Some of the garbage."""

    dead: dict[int, list[bytes]]
    """Unit -> lines of chunks that nothing refers to."""
    retired: dict[bytes, dict[bytes, bytes]]
    """Partition that is done with -> id and line of its chunks."""

    def lines(self) -> list[bytes]:
        return [line for lines in (*self.dead.values(), *(c.values() for c in self.retired.values())) for line in lines]

    def is_full(self) -> bool:
        return len(self.lines()) + len(self.retired) >= CHUNKS_AT_ONCE


class Sweeper:
    """Compares what the control state names with what the storage units have."""

    def __init__(self, access: AdminAccess, figures: Mapping[int, UnitFigures | None]) -> None:
        """`figures`: unit -> what it said last, None where it did not answer: that one is not waited for again."""
        self._by = access
        self._figures = figures
        self._openings = 0
        self._settled: dict[int, set[str]] = {}
        """Unit -> keys of ended lives that this server had committed: no orphans, and never any more."""

    def sweep(self) -> Swept:
        """Deletes bytes that nothing names: of dropped rows, of partitions before the record, of ended lives."""
        with self._by.access.lock:
            away = {unit for unit, said in self._figures.items() if said is None}
            num_chunks = num_partitions = 0
            for _ in range(PAGES_AT_ONCE):
                page = self._garbage(away)
                deleted, gone = self._collect(page, away)
                num_chunks += deleted
                num_partitions += gone
                if not page.is_full():
                    break
            if page.is_full():
                return Swept(num_chunks, 0, num_partitions, has_more=True)
            return Swept(num_chunks, self._sweep_orphans(away), num_partitions, has_more=False)

    def missing_chunks(self) -> list[bytes]:
        """Ids of chunks that the control state names and no unit has. Raises StorageUnreachable: all must be asked."""
        present = {key for unit in self._by.units for key in self._keys(unit)}
        return [chunk_id for chunk_id, line in self.named(Named.KEPT) if parse_chunk(line).key not in present]

    def named(self, which: Named) -> list[tuple[bytes, bytes]]:
        """Id and line of every chunk that the control state names."""
        waiting = "the coordinator compares bytes"
        found: dict[bytes, bytes] = {}
        for rollout_id in partitions(self._by.access, which, waiting):
            found.update(chunks_of(self._by.access, which, rollout_id, waiting))
        return list(found.items())

    # --- garbage ---------------------------------------------------------------------------------------------------

    def _garbage(self, away: set[int]) -> _Page:
        dead, retired = self._by.read("garbage", CHUNKS_AT_ONCE, *sorted(away), waiting=_WAITING)
        return _Page(
            {int(unit): lines for unit, lines in zip(dead[::2], dead[1::2], strict=True)},
            {
                rollout_id: dict(zip(chunks[::2], chunks[1::2], strict=True))
                for rollout_id, chunks in zip(retired[::2], retired[1::2], strict=True)
            },
        )

    def _collect(self, page: _Page, away: set[int]) -> tuple[int, int]:
        """Deletes what is on the page; gives how many chunks and partitions went. Adds units that do not answer."""
        if not page.dead and not page.retired:
            return 0, 0
        deleted = self._delete(map(_place, page.lines()), away)
        dead = [(unit, len(lines)) for unit, lines in page.dead.items() if unit not in away]
        arguments: list[Argument] = [len(dead), *(value for pair in dead for value in pair), len(away), *sorted(away)]
        for rollout_id, chunks in page.retired.items():
            arguments += (rollout_id, len(chunks), *chunks)
        (gone,) = self._by.change("collected", *arguments, waiting=_WAITING)
        return deleted, gone

    def _delete(self, places: Iterable[tuple[int, str]], away: set[int]) -> int:
        """Deletes keys on their units; adds those that do not answer to `away`, and passes them by."""
        by_unit: dict[int, list[str]] = {}
        for unit, key in places:
            by_unit.setdefault(unit, []).append(key)
        deleted = 0
        for unit, keys in by_unit.items():
            # One that is no part of the job any more took its bytes with it.
            if unit in away or unit >= len(self._by.units):
                continue
            try:
                deleted += self._by.units[unit].delete(keys, deadline=self._by.deadline())
            except StorageUnreachable:
                away.add(unit)
        return deleted

    # --- orphans ---------------------------------------------------------------------------------------------------

    def _sweep_orphans(self, away: set[int]) -> int:
        """Chunks of lives that have ended, without a commit: nothing can commit them any more."""
        found = self._found(away)
        # Read after the keys, so that a life that begins meanwhile is not taken for one that has ended (a later
        # coordinator may begin one), and before the names, so that what an ended life has committed is named by then.
        live = {name.decode() for name in self._by.read("lives", waiting=_WAITING)}
        ended = {unit: {key for key in keys if key.split(":")[1] not in live} for unit, keys in found.items()}
        if self._openings != self._by.openings:
            self._settled, self._openings = {}, self._by.openings
        settled = {unit: self._settled.get(unit, set()) & keys for unit, keys in ended.items()}
        self._settled |= settled
        suspects = [(unit, key) for unit, keys in ended.items() for key in keys - settled[unit]]
        if not suspects:
            return 0
        committed = {parse_chunk(line).key for _, line in self.named(Named.ALL)}
        for unit, key in suspects:
            if key in committed:
                settled[unit].add(key)
        return self._delete(((unit, key) for unit, key in suspects if key not in committed), away)

    def _found(self, away: set[int]) -> dict[int, list[str]]:
        """Unit -> keys of the chunks that it has; adds those that do not answer to `away`, and passes them by."""
        found: dict[int, list[str]] = {}
        for unit in self._by.units:
            if unit.index in away:
                continue
            try:
                found[unit.index] = self._keys(unit)
            except StorageUnreachable:
                away.add(unit.index)
        return found

    def _keys(self, unit: StorageUnit) -> list[str]:
        return [key for page in unit.scan(deadline=self._by.deadline) for key in page]


def _place(line: bytes) -> tuple[int, str]:
    chunk = parse_chunk(line)
    return chunk.unit, chunk.key
