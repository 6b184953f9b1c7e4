"""Upkeep of the storage units: lost units and chunks, room, and the sweep of bytes that nothing names.

For the queue admin only; the coordinator decides when room is made and reports the losses. A unit that does not answer
is skipped and delays no other. Deletes only what no commit can name any more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rljob_api.names import RolloutId, partition_name
from rljob_workers.transfer_queue.admin_calls import AdminCalls, Named
from rljob_workers.transfer_queue.control.connection import Argument
from rljob_workers.transfer_queue.errors import StorageUnreachable
from rljob_workers.transfer_queue.row_format import MAX_CHUNK_BYTES, ChunkRef, parse_chunk
from rljob_workers.transfer_queue.units import StorageUnit, UnitFigures

MAX_NAMED = 4
"""Partitions that a sentence names; of more of them it has the first and the last."""


@dataclass(frozen=True, slots=True)
class LostRows:
    """What a loss of bytes means, in groups."""

    recomputed: int = 0
    """Only derived fields were lost: they, and what depends on them, are computed again."""
    reissued: int = 0
    """The group is generated again under the same reservation."""
    absent: int = 0
    """Published, and consumed by every training task: nothing is done until a restore."""
    needs_global_restart: int = 0
    """Claimed or consumed by a training task, or needed by another one that is behind: only a global restart helps."""

    def __str__(self) -> str:
        return (
            f"{self.recomputed} groups computed again, {self.reissued} generated again, {self.absent} absent until a"
            f" restore, {self.needs_global_restart} in training (these need a global restart)"
        )


@dataclass(frozen=True, slots=True)
class LostChunks:
    """Chunks that a storage unit lost one by one, though it kept its mark."""

    unit: int
    rollout_id: RolloutId
    fields: tuple[str, ...]
    """Of the chunks that were found missing now."""
    num_chunks: int
    """Of this unit, since the control state began."""
    loss: LostRows


class DropReason(StrEnum):
    """Why rows could be given up."""

    RETAINED = "retained"
    """They were retained for a restore only."""
    UNCLAIMED = "unclaimed"
    """No training task had claimed them: they are generated again."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What went at one time to make room."""

    given: DropReason
    rollout_id: RolloutId
    groups: int
    rows: int
    total_rows: int
    """That went so in all, since the control state began."""

    def __str__(self) -> str:
        return in_one_sentence([self])


def in_one_sentence(dropped: Iterable[Dropped]) -> str:
    """What went, in the order of the contract: kinds, rows, partitions."""
    listed = list(dropped)
    kinds = [(given, [one for one in listed if one.given is given]) for given in DropReason]
    return "; ".join(_sentence(given, of_kind) for given, of_kind in kinds if of_kind)


def _sentence(given: DropReason, dropped: list[Dropped]) -> str:
    rows, groups = sum(one.rows for one in dropped), sum(one.groups for one in dropped)
    what = f"{rows} rows ({groups} groups) of {_partitions({one.rollout_id for one in dropped})}"
    if given is DropReason.RETAINED:
        return f"{what}, kept for a restore, were dropped"
    return f"{what} were dropped and are generated again"


def _partitions(rollout_ids: set[RolloutId]) -> str:
    names = [partition_name(rollout_id) for rollout_id in sorted(rollout_ids)]
    if len(names) <= MAX_NAMED:
        return ", ".join(names)
    return f"{len(names)} partitions from {names[0]} to {names[-1]}"


CHUNKS_AT_ONCE = 1000
"""In one call: each ends within milliseconds."""


PAGES_AT_ONCE = 16
"""In one sweep: its caller has other work, too."""


_WAITING = "a sweep"


@dataclass(frozen=True, slots=True)
class Swept:
    """What `sweep` deleted."""

    chunks: int
    orphans: int
    """Chunks of ended incarnations that no commit names; counted only once there is no more garbage."""
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

    def __init__(self, calls: AdminCalls, figures: Mapping[int, UnitFigures | None]) -> None:
        """`figures`: unit -> its last reported figures, None where it did not answer: a sweep skips that one."""
        self._calls = calls
        self._figures = figures
        self._openings = 0
        self._settled: dict[int, set[str]] = {}
        """Unit -> keys of ended incarnations that this server had committed: no orphans, and never any more."""

    def sweep(self) -> Swept:
        """Deletes bytes that nothing names: of dropped rows, of partitions before the record, of ended incarnations."""
        with self._calls.lock:
            away = {unit for unit, reported in self._figures.items() if reported is None}
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
        present = {key for unit in self._calls.units for key in self._keys(unit)}
        return [chunk_id for chunk_id, line in self.named(Named.RETAINED) if parse_chunk(line).key not in present]

    def named(self, which: Named) -> list[tuple[bytes, bytes]]:
        """Id and line of every chunk that the control state names."""
        waiting = "the coordinator compares bytes"
        found: dict[bytes, bytes] = {}
        for rollout_id in self._calls.partitions(which, waiting):
            found.update(self._calls.chunks(which, rollout_id, waiting))
        return list(found.items())

    # --- garbage ---------------------------------------------------------------------------------------------------

    def _garbage(self, away: set[int]) -> _Page:
        dead, retired = self._calls.read("garbage", CHUNKS_AT_ONCE, *sorted(away), waiting=_WAITING)
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
        (gone,) = self._calls.change("collected", *arguments, waiting=_WAITING)
        return deleted, gone

    def _delete(self, places: Iterable[tuple[int, str]], away: set[int]) -> int:
        """Deletes keys on their units; adds those that do not answer to `away`, and passes them by."""
        by_unit: dict[int, list[str]] = {}
        for unit, key in places:
            by_unit.setdefault(unit, []).append(key)
        deleted = 0
        for unit, keys in by_unit.items():
            # One that is no part of the job any more took its bytes with it.
            if unit in away or unit >= len(self._calls.units):
                continue
            try:
                deleted += self._calls.units[unit].delete(keys, deadline=self._calls.deadline())
            except StorageUnreachable:
                away.add(unit)
        return deleted

    # --- orphans ---------------------------------------------------------------------------------------------------

    def _sweep_orphans(self, away: set[int]) -> int:
        """Chunks of incarnations that have ended, without a commit: nothing can commit them any more."""
        found = self._found(away)
        # Read after the keys, so that an incarnation that begins meanwhile is not taken for one that has ended (a later
        # coordinator may begin one), and before the names, so that what an ended incarnation has committed is named by
        # then.
        live = {name.decode() for name in self._calls.read("lives", waiting=_WAITING)}
        ended = {unit: {key for key in keys if key.split(":")[1] not in live} for unit, keys in found.items()}
        if self._openings != self._calls.openings:
            self._settled, self._openings = {}, self._calls.openings
        settled = {unit: self._settled.get(unit, set()) & keys for unit, keys in ended.items()}
        self._settled |= settled
        suspects = [(unit, key) for unit, keys in ended.items() for key in keys - settled[unit]]
        if not suspects:
            return 0
        partials = self._calls.read("partials", waiting=_WAITING)
        committed = {parse_chunk(line).key for line in (*partials, *(line for _, line in self.named(Named.ALL)))}
        for unit, key in suspects:
            if key in committed:
                settled[unit].add(key)
        return self._delete(((unit, key) for unit, key in suspects if key not in committed), away)

    def _found(self, away: set[int]) -> dict[int, list[str]]:
        """Unit -> keys of the chunks that it has; adds those that do not answer to `away`, and passes them by."""
        found: dict[int, list[str]] = {}
        for unit in self._calls.units:
            if unit.index in away:
                continue
            try:
                found[unit.index] = self._keys(unit)
            except StorageUnreachable:
                away.add(unit.index)
        return found

    def _keys(self, unit: StorageUnit) -> list[str]:
        return [key for page in unit.scan(deadline=self._calls.deadline) for key in page]


def _place(line: bytes) -> tuple[int, str]:
    chunk = parse_chunk(line)
    return chunk.unit, chunk.key


_NEEDED_BYTES = 2 * MAX_CHUNK_BYTES
"""Of room, so that a put and its buffers still fit."""


_DROPPED = struct.Struct("<IIIId")


_UPKEEP = "the coordinator looks after storage"


_ROOM = "the coordinator makes room"


class StorageUpkeep:
    """Probes the units, marks them, declares losses and makes room."""

    def __init__(self, calls: AdminCalls, *, high_water: float, nearly_full: float) -> None:
        """Shares of a unit's limit."""
        self.figures: dict[int, UnitFigures | None] = {}
        """Of each unit as `probe` found it last; None where it did not answer."""
        self.short_of_memory = False
        """Whether the last `probe` found a unit above `high_water`."""
        self.nearly_full = False
        """Whether the last `probe` found a unit above `nearly_full`."""
        self._calls = calls
        self._high_water = high_water
        self._nearly_full = nearly_full

    # --- units ---------------------------------------------------------------------------------------------------

    def probe(self) -> list[int]:
        """Units that came back without their rows; sets or lifts the high-water mark, too. Skips unreachable ones."""
        with self._calls.lock:
            known, lost, limited = self._calls.known_generations(_UPKEEP), [], []
            for unit in self._calls.units:
                try:
                    mark = unit.generation(deadline=self._calls.deadline())
                    if mark is None or mark != known.get(unit.index):  # also one that was away at the first epoch
                        lost.append(unit.index)
                    figures = unit.figures(deadline=self._calls.deadline())
                except StorageUnreachable:
                    self.figures[unit.index] = None
                    continue
                self.figures[unit.index] = figures
                if figures.limit_bytes:
                    limited.append((figures.used_bytes, figures.limit_bytes))
            self.short_of_memory = any(used > self._high_water * limit for used, limit in limited)
            self.nearly_full = any(
                used > min(self._nearly_full * limit, limit - _NEEDED_BYTES) for used, limit in limited
            )
            self._calls.change("memory", int(self.short_of_memory), waiting=_UPKEEP)
            return lost

    def declare_lost(self, unit: int, emit: Callable[[LostRows], None] | None = None) -> LostRows:
        """What unit `unit` held under another mark is lost; then marks it. Nothing if it has the mark that it should.

        `emit` makes the loss known before the mark: a coordinator that dies between the two finds the same loss again.
        """
        with self._calls.lock:
            storage = self._calls.units[unit]
            mark, known = (
                storage.generation(deadline=self._calls.deadline()),
                self._calls.known_generations(_UPKEEP).get(unit),
            )
            if mark is not None and mark == known:
                return LostRows()
            generation, *groups = self._calls.change(
                "declare_lost", unit, mark or 0, waiting=f"{storage} came back empty"
            )
            loss = LostRows(*groups)
            if emit is not None and known is not None:  # else it is met for the first time: nothing was put there
                emit(loss)
            storage.raise_mark(generation, deadline=self._calls.deadline())
            return loss

    def renew_units(self) -> None:
        """Before an epoch: marks what lost its mark, and gives up what units held that the job no longer has."""
        for unit in self._calls.units:
            try:
                self.declare_lost(unit.index)
            except StorageUnreachable:
                # Found by a later probe; rows that it should have had are treated as lost then.
                continue
        for index in self._calls.known_generations(_UPKEEP):
            if index >= len(self._calls.units):  # the job was resumed with fewer units
                waiting = f"storage unit {index} is no part of the job any more"
                self._calls.change("declare_lost", index, 0, waiting=waiting)

    # --- single chunks -------------------------------------------------------------------------------------------

    def declare_missing(self, emit: Callable[[LostChunks], None] | None = None) -> list[LostChunks]:
        """What readers did not find on a unit that kept its mark is lost, like the rows of one that came back empty.

        `emit` makes the loss known before the readers' reports are deleted: a coordinator that dies in between finds it
        again.
        """
        with self._calls.lock:
            found = []
            for place in self._calls.read("missed", waiting=_UPKEEP):
                rollout_id, unit = (int(part) for part in place.split(b":"))
                missing = self._missing(RolloutId(rollout_id), unit)
                if missing is None:
                    continue
                num_chunks, *groups = self._calls.change(
                    "declare_missing", rollout_id, unit, *missing, waiting=f"chunks of storage unit {unit} are gone"
                )
                fields = tuple(sorted({chunk.field for chunk in missing.values()}))
                lost = LostChunks(unit, RolloutId(rollout_id), fields, num_chunks, LostRows(*groups))
                if missing or lost.loss != LostRows():
                    found.append(lost)
                    if emit is not None:
                        emit(lost)
                self._calls.change("forget_missed", place, waiting=_UPKEEP)
            return found

    def _missing(self, rollout_id: RolloutId, unit: int) -> dict[bytes, ChunkRef] | None:
        """By id, the chunks that should be on the unit and are not; None where the unit is away or lost its mark."""
        generation = self._calls.known_generations(_UPKEEP).get(unit)
        named = {
            chunk_id: chunk
            for chunk_id, line in self._calls.chunks(Named.RETAINED, rollout_id, _UPKEEP)
            if (chunk := parse_chunk(line)).unit == unit and chunk.unit_generation == generation
        }
        if not named or unit >= len(self._calls.units):
            return {}
        storage = self._calls.units[unit]
        try:
            present = storage.present([chunk.key for chunk in named.values()], deadline=self._calls.deadline())
            # Asked after the chunks: a unit that is empty has lost everything, and `probe` finds it.
            if storage.generation(deadline=self._calls.deadline()) != generation:
                return None
        except StorageUnreachable:
            return None
        there = set(present)
        return {chunk_id: chunk for chunk_id, chunk in named.items() if chunk.key not in there}

    # --- room ----------------------------------------------------------------------------------------------------

    def drop_retained(self) -> Dropped | None:
        """Makes room at the cost of a restore: rows of the oldest partition that is trained go; None for none."""
        return _dropped(self._calls.change("drop_retained", waiting=_ROOM))

    def relieve(self) -> Dropped | None:
        """Makes room: rows retained only for a restore go first, then the newest unclaimed groups; else None."""
        with self._calls.lock:
            return self.drop_retained() or _dropped(self._calls.change("drop_newest", waiting=_ROOM))

    def dropped(self) -> list[Dropped]:
        """What went to make room, oldest first, until `forget_dropped`: none is lost before it is reported."""
        listed = self._calls.read("dropped", waiting="the coordinator looks what went to make room")
        return [one for packed in listed if (one := _dropped([packed])) is not None]

    def forget_dropped(self, count: int) -> None:
        """The first `count` of `dropped` were reported, durably."""
        self._calls.change("forget_dropped", count, waiting="the coordinator has told what went to make room")


def _dropped(reply: list[bytes]) -> Dropped | None:
    if not reply:
        return None
    kind, rollout_id, groups, rows, total = _DROPPED.unpack(reply[0])
    return Dropped(tuple(DropReason)[kind], RolloutId(rollout_id), groups, rows, int(total))
