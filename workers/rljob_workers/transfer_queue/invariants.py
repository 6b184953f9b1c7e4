"""The proof that the queue is in order, on a job that runs: no row lost or doubled, no byte missing.

For the coordinator's queue admin and for tests. Changes nothing. The control state is proven part by part, each by one
call and so at one moment; bytes are called missing only if they are still named after they were not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from rljob_api.names import RolloutId, partition_name
from rljob_workers.transfer_queue.control.connection import Argument
from rljob_workers.transfer_queue.control.library import shape_fields
from rljob_workers.transfer_queue.control.rows import parse_chunk
from rljob_workers.transfer_queue.naming import Named, chunks_of
from rljob_workers.transfer_queue.placement import ChunkRef
from rljob_workers.transfer_queue.read_access import ReadAccess

_WAITING = "a check of the invariants"
GROUPS_AT_ONCE = 128
"""As in `lua/observe.lua`."""


class QueueInvariants:
    """The proof of one queue."""

    def __init__(self, access: ReadAccess) -> None:
        self._access = access

    def broken(self, partitions: list[RolloutId]) -> list[str]:
        """Every broken invariant in a sentence; empty when all hold."""
        return list(dict.fromkeys(line for step in self.steps(partitions) for line in step()))

    def steps(self, partitions: list[RolloutId]) -> Iterator[Callable[[], list[str]]]:
        """The same in steps of milliseconds, for who has other things to do in between."""
        shape = self._access.shape
        parts: list[tuple[Argument, ...]] = [(task.name,) for task in shape.tasks]
        parts += [(":chunks", field) for field in shape_fields(shape)]
        parts += [(":groups", first) for first in range(0, shape.batch_size, GROUPS_AT_ONCE)]
        yield partial(self._part, "")
        for rollout_id in partitions:
            for part in parts:
                yield partial(self._part, rollout_id, *part)
        for rollout_id in partitions:
            yield partial(self._missing_bytes, rollout_id)

    def _part(self, *part: Argument) -> list[str]:
        return [line.decode() for line in self._access.read("check", *part, waiting=_WAITING)]

    def _missing_bytes(self, rollout_id: RolloutId) -> list[str]:
        suspects = self._named(rollout_id)
        for unit in self._access.units:
            mine = [key for key, chunk in suspects.items() if chunk.unit == unit.index]
            with self._access.lock:
                present = unit.present(mine, deadline=self._access.deadline())
            for key in present:
                del suspects[key]
        if not suspects:
            return []
        still = self._named(rollout_id)
        return [
            f"{partition_name(rollout_id)}: chunk {key} is not on storage unit {chunk.unit}"
            for key, chunk in suspects.items()
            if key in still
        ]

    def _named(self, rollout_id: RolloutId) -> dict[str, ChunkRef]:
        """By key, the chunks of a partition that should be on their unit: of the unit's present generation."""
        marks = self._access.read("units", waiting=_WAITING)
        known = {int(unit): int(mark) for unit, mark in zip(marks[::2], marks[1::2], strict=True)}
        chunks = [parse_chunk(line) for _, line in chunks_of(self._access, Named.KEPT, rollout_id, _WAITING)]
        return {chunk.key: chunk for chunk in chunks if known.get(chunk.unit) == chunk.unit_generation}
