"""Upkeep of the storage units: which came back empty, which lost single chunks, how full they are, what goes for room.

For the queue admin only. Says what it did; whom to tell, and when room must be made, the coordinator decides.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from rljob_api.names import RolloutId
from rljob_workers.transfer_queue.admin_access import AdminAccess
from rljob_workers.transfer_queue.control.rows import parse_chunk
from rljob_workers.transfer_queue.errors import StorageUnreachable
from rljob_workers.transfer_queue.inspection import UnitFigures
from rljob_workers.transfer_queue.losses import Dropped, Given, LostChunks, LostRows
from rljob_workers.transfer_queue.naming import Named, chunks_of
from rljob_workers.transfer_queue.placement import MAX_CHUNK_BYTES, ChunkRef

_NEEDED_BYTES = 2 * MAX_CHUNK_BYTES
"""Of room, so that a put and its buffers still fit."""
_DROPPED = struct.Struct("<IIIId")
_LOOKS = "the coordinator looks after storage"
_ROOM = "the coordinator makes room"


class StorageUpkeep:
    """Looks after the units; what it saw last is kept in `figures`."""

    def __init__(
        self,
        access: AdminAccess,
        figures: dict[int, UnitFigures | None],
        *,
        high_water: float,
        nearly_full: float,
    ) -> None:
        """`figures`: unit -> what it said last, None where it did not answer."""
        self._by = access
        self._figures = figures
        self._high_water = high_water
        self._nearly_full = nearly_full
        self._short = self._nearly = False

    # --- units ---------------------------------------------------------------------------------------------------

    def probe(self) -> list[int]:
        """Units that came back without their rows; sets or lifts the high-water mark, too. Skips unreachable ones."""
        with self._by.access.lock:
            known, lost, uses = self._by.known_generations(), [], []
            for unit in self._by.units:
                try:
                    mark = unit.generation(deadline=self._by.deadline())
                    if mark is None or mark != known.get(unit.index):  # also one that was away at the first epoch
                        lost.append(unit.index)
                    use = unit.use(deadline=self._by.deadline())
                    keys = unit.num_keys(deadline=self._by.deadline())
                except StorageUnreachable:
                    self._figures[unit.index] = None
                    continue
                self._figures[unit.index] = UnitFigures(use.used, use.limit, keys, use.received, use.sent)
                if use.limit:
                    uses.append(use)
            self._short = any(use.used > self._high_water * use.limit for use in uses)
            self._nearly = any(use.used > min(self._nearly_full * use.limit, use.limit - _NEEDED_BYTES) for use in uses)
            self._by.change("memory", int(self.short_of_memory), waiting=_LOOKS)
            return lost

    @property
    def short_of_memory(self) -> bool:
        """Whether a unit was above its high-water mark when `probe` looked last."""
        return self._short

    @property
    def nearly_full(self) -> bool:
        """Whether a unit had hardly any room left when `probe` looked last."""
        return self._nearly

    def declare_lost(self, unit: int, emit: Callable[[LostRows], None] | None = None) -> LostRows:
        """What unit `unit` held under another mark is lost; then marks it. Nothing if it has the mark that it should.

        `emit` makes the loss known before the mark: who dies between the two finds the same loss again.
        """
        with self._by.access.lock:
            storage = self._by.units[unit]
            mark, known = storage.generation(deadline=self._by.deadline()), self._by.known_generations().get(unit)
            if mark is not None and mark == known:
                return LostRows()
            generation, *groups = self._by.change("declare_lost", unit, mark or 0, waiting=f"{storage} came back empty")
            loss = LostRows(*groups)
            if emit is not None and known is not None:  # else it is met for the first time: nothing was put there
                emit(loss)
            storage.raise_mark(generation, deadline=self._by.deadline())
            return loss

    def renew_units(self) -> None:
        """Before an epoch: marks what lost its mark, and gives up what units held that the job no longer has."""
        for unit in self._by.units:
            try:
                self.declare_lost(unit.index)
            except StorageUnreachable:
                # Found by a later probe; where its rows were kept they are treated as lost then.
                continue
        for index in self._by.known_generations():
            if index >= len(self._by.units):  # the job was resumed with fewer units
                waiting = f"storage unit {index} is no part of the job any more"
                self._by.change("declare_lost", index, 0, waiting=waiting)

    # --- single chunks -------------------------------------------------------------------------------------------

    def declare_missing(self, emit: Callable[[LostChunks], None] | None = None) -> list[LostChunks]:
        """What readers did not find on a unit that kept its mark is lost, like the rows of one that came back empty.

        `emit` makes the loss known before the readers' word is forgotten: who dies between the two finds it again.
        """
        with self._by.access.lock:
            found = []
            for place in self._by.read("missed", waiting=_LOOKS):
                rollout_id, unit = (int(part) for part in place.split(b":"))
                missing = self._missing(RolloutId(rollout_id), unit)
                if missing is None:
                    continue
                num_chunks, *groups = self._by.change(
                    "declare_missing", rollout_id, unit, *missing, waiting=f"chunks of storage unit {unit} are gone"
                )
                fields = tuple(sorted({chunk.field for chunk in missing.values()}))
                lost = LostChunks(unit, RolloutId(rollout_id), fields, num_chunks, LostRows(*groups))
                if missing or lost.loss != LostRows():
                    found.append(lost)
                    if emit is not None:
                        emit(lost)
                self._by.change("forget_missed", place, waiting=_LOOKS)
            return found

    def _missing(self, rollout_id: RolloutId, unit: int) -> dict[bytes, ChunkRef] | None:
        """By id, the chunks that should be on the unit and are not; None where that cannot be said now."""
        generation = self._by.known_generations().get(unit)
        named = {
            chunk_id: chunk
            for chunk_id, line in chunks_of(self._by.access, Named.KEPT, rollout_id, _LOOKS)
            if (chunk := parse_chunk(line)).unit == unit and chunk.unit_generation == generation
        }
        if not named or unit >= len(self._by.units):
            return {}
        storage = self._by.units[unit]
        try:
            present = storage.present([chunk.key for chunk in named.values()], deadline=self._by.deadline())
            # Asked after the chunks: a unit that is empty has lost everything, and `probe` finds it.
            if storage.generation(deadline=self._by.deadline()) != generation:
                return None
        except StorageUnreachable:
            return None
        there = set(present)
        return {chunk_id: chunk for chunk_id, chunk in named.items() if chunk.key not in there}

    # --- room ----------------------------------------------------------------------------------------------------

    def drop_retained(self) -> Dropped | None:
        """Makes room at the cost of a restore: rows of the oldest published partition go; None if there are none."""
        return _dropped(self._by.change("drop_retained", waiting=_ROOM))

    def relieve(self) -> Dropped | None:
        """Makes room: rows that are kept only for a restore go first, then the newest unclaimed groups; else None."""
        with self._by.access.lock:
            return self.drop_retained() or _dropped(self._by.change("drop_newest", waiting=_ROOM))

    def dropped(self) -> list[Dropped]:
        """What went to make room, oldest first, until `forget_dropped`: what is not told yet is not lost."""
        listed = self._by.read("dropped", waiting="the coordinator looks what went to make room")
        return [told for told in map(_dropped, ([packed] for packed in listed)) if told is not None]

    def forget_dropped(self, count: int) -> None:
        """The first `count` of `dropped` were told, durably."""
        self._by.change("forget_dropped", count, waiting="the coordinator has told what went to make room")


def _dropped(reply: list[bytes]) -> Dropped | None:
    if not reply:
        return None
    kind, rollout_id, groups, rows, total = _DROPPED.unpack(reply[0])
    return Dropped(tuple(Given)[kind], RolloutId(rollout_id), groups, rows, int(total))
