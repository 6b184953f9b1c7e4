"""Sweeping: bytes that nothing names are deleted; names of bytes that are nowhere are found.

For the steward only. What is deleted can be named by nobody any more: garbage of the control state, and chunks of ended
lives without a commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_workers.transfer_queue.control.rows import parse_chunk
from rljob_workers.transfer_queue.stewardship import Stewardship

CHUNKS_AT_ONCE = 1000
"""Of the garbage, in one sweep."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What `sweep` deleted."""

    chunks: int
    orphans: int
    """Chunks of ended lives that no commit names."""
    partitions: int


class Sweeper:
    """Compares what the control state names with what the storage units have."""

    def __init__(self, stewardship: Stewardship) -> None:
        self._by = stewardship
        self._openings = 0
        self._settled: set[str] = set()
        """Keys of ended lives that this server had committed: no orphans, and never any more."""

    def sweep(self) -> Swept:
        """Deletes bytes that nothing names: of dropped rows, of partitions before the record, of ended lives."""
        with self._by.access.lock:
            dead, partitions, *tables = self._by.read("garbage", CHUNKS_AT_ONCE, waiting="a sweep")
            chunks = self._delete([*dead, *(line for table in tables for line in table)])
            if dead or partitions:
                self._by.change("collected", len(dead), *partitions, waiting="a sweep")
            return Swept(chunks, self._sweep_orphans(), len(partitions))

    def missing_chunks(self) -> list[bytes]:
        """Ids of chunks that the control state names and no unit has."""
        present = {key for keys in self._found().values() for key in keys}
        return [chunk_id for _, chunk_id, line in self.named("kept") if parse_chunk(line).key not in present]

    def _found(self) -> dict[int, list[str]]:
        """Unit -> keys of the chunks that it has."""
        return {
            unit.index: [key for page in unit.scan(deadline=self._by.deadline) for key in page]
            for unit in self._by.units
        }

    def named(self, which: str) -> list[tuple[int, bytes, bytes]]:
        """Partition, id and line of every chunk that the control state names; `all` or `kept` (not yet garbage)."""
        reply = self._by.read("chunks", which, waiting="the coordinator compares bytes")
        return list(zip(reply[::3], reply[1::3], reply[2::3], strict=True))

    def _delete(self, lines: Sequence[bytes]) -> int:
        by_unit: dict[int, list[str]] = {}
        for line in lines:
            chunk = parse_chunk(line)
            by_unit.setdefault(chunk.unit, []).append(chunk.key)
        there = {index: keys for index, keys in by_unit.items() if index < len(self._by.units)}
        return sum(self._by.units[index].delete(keys, deadline=self._by.deadline()) for index, keys in there.items())

    def _sweep_orphans(self) -> int:
        """Chunks of lives that have ended, without a commit: nothing can commit them any more."""
        found = self._found()
        # Read after the keys, so that a life that begins meanwhile is not taken for one that has ended (a later
        # coordinator may begin one), and before the names, so that what an ended life has committed is named by then.
        live = {name.decode() for name in self._by.read("lives", waiting="a sweep")}
        ended = {index: [key for key in keys if key.split(":")[1] not in live] for index, keys in found.items()}
        if self._openings != self._by.openings:
            self._settled, self._openings = set(), self._by.openings
        self._settled &= {key for keys in ended.values() for key in keys}
        suspects = {index: [key for key in keys if key not in self._settled] for index, keys in ended.items()}
        if not any(suspects.values()):
            return 0
        committed = {parse_chunk(line).key for _, _, line in self.named("all")}
        orphans = {index: [key for key in keys if key not in committed] for index, keys in suspects.items()}
        self._settled |= {key for keys in suspects.values() for key in keys if key in committed}
        return sum(
            self._by.units[index].delete(keys, deadline=self._by.deadline()) for index, keys in orphans.items() if keys
        )
