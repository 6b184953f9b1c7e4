"""The data plane: columns to chunks on the storage units, and back.

For the queue's client, from one thread. Knows no readiness, lease or partition: it stores bytes under keys that are
never used twice, returns where they lie, and fetches by that. Units work one after another, or in a thread each where
the bytes are worth it. Only a commit on the control Redis makes stored bytes part of the queue; the coordinator sweeps
the rest.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from rljob_workers.transfer_queue.chunk_io import BufferPool, ChunkRead, plan_reads, read_chunks, write_chunks
from rljob_workers.transfer_queue.chunks import SPREAD_BYTES, Piece, cut_columns
from rljob_workers.transfer_queue.errors import CorruptChunk, QueueError, RowsLost, StorageFull, StorageUnreachable
from rljob_workers.transfer_queue.resp import Clock, RespConnection, Sleep
from rljob_workers.transfer_queue.row_format import ChunkRef, FieldPlacement
from rljob_workers.transfer_queue.types import QueueTiming
from rljob_workers.transfer_queue.units import StorageUnit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rljob_api.names import Epoch
    from rljob_workers.tensors.jagged import Column, Jagged


_LOG = logging.getLogger("rljob.queue")


S = TypeVar("S")


T = TypeVar("T")


SLOW_BYTES_PER_SECOND = 50 << 20
"""Each so many bytes extend the deadline by a second: a slow unit is not taken for one that hangs."""


SHUN_SECONDS = 5.0
"""A unit that failed a put is the last choice for so long, so that not every put waits for it again."""


FULL_RETRY_SECONDS = 0.05


KNOWN_CHUNKS = 1 << 14
"""So many keys are remembered at most."""


Trouble: TypeAlias = StorageFull | StorageUnreachable
"""What another unit, or waiting, may cure."""


class StorageUnits:
    """All storage units of a job, for one incarnation of a rank.

        units = StorageUnits(endpoints.storage_units, incarnation.epoch, incarnation.incarnation)
        stored = units.store({"tokens": tokens, "rewards": rewards}, deadline=...)    then commit `stored`
        columns = units.fetch(claimed, deadline=...)                                  placements from a claim

    `deadline` is on `clock`, in seconds; `waiting` names in an error who waits for what, e.g.
    `actor-0.0 waits for rows of train_12`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        epoch: Epoch,
        incarnation: str,
        *,
        checksums: bool = False,
        timing: QueueTiming = QueueTiming(),
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        """Connects when first used. `checksums`: of all bytes, written and, where there is one, checked."""
        self._checksums = checksums
        self._pool = BufferPool()
        self._units = [
            StorageUnit(index, url, timing=timing, clock=clock, sleep=sleep) for index, url in enumerate(urls)
        ]
        if not self._units:
            raise ValueError("TransferQueue: there is no storage unit. Set transferQueue.storageUnits to at least 1.")
        self._timing = timing
        self._clock = clock
        self._sleep = sleep
        # Several of these may serve one incarnation: the random part keeps their keys apart.
        self._key_prefix = f"{epoch}:{incarnation}:{secrets.token_hex(4)}"
        self._nonces = itertools.count()
        self._turns = itertools.count(int(incarnation[:6], 16))
        self._left_behind: list[list[bytes]] = [[] for _ in urls]
        """Per unit, keys that a broken exchange may have written: the unit deletes them when it answers again."""
        self._known: list[set[str]] = [set() for _ in urls]
        """Per unit, keys of chunks whose header was read."""
        self._shunned_until = [float("-inf")] * len(self._units)
        self._threads: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._units)

    def name_of(self, index: int) -> str:
        """A unit as errors name it."""
        return str(self._units[index])

    def close(self) -> None:
        """Ends connections and threads; may be called twice."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        for unit in self._units:
            unit.close()

    def store(
        self, columns: Mapping[str, Column], *, deadline: float, waiting: str = "rows were to be stored"
    ) -> dict[str, FieldPlacement]:
        """Stores all columns; pieces that a unit does not take go to the next one. Returns where each field lies.

        Raises StorageFull or StorageUnreachable when at the deadline some piece is on no unit.
        """
        pieces, tables = cut_columns(columns, len(self._units), checksums=self._checksums)
        placed: dict[Piece, ChunkRef] = {}
        began = self._clock()
        troubles: dict[int, Trouble] = {}
        while left := [piece for piece in pieces if piece not in placed]:
            round_troubles = self._store_round(left, placed, deadline, waiting)
            # The first trouble of a unit has the cause: a later one may only be that there was no time left.
            troubles = round_troubles | troubles
            if round_troubles and self._clock() + FULL_RETRY_SECONDS >= deadline:
                self._take_back(placed.values())
                raise _combined(troubles, self._clock() - began)
            if round_troubles and not self._good_units():
                self._sleep(FULL_RETRY_SECONDS)
        chunks: dict[str, list[ChunkRef]] = {field: [] for field in columns}
        for piece in pieces:
            chunks[piece.field].append(placed[piece])
        return {field: FieldPlacement(tuple(chunks[field]), table) for field, table in tables.items()}

    def fetch(
        self, fields: Mapping[str, FieldPlacement], *, deadline: float, waiting: str = "claimed rows were to be read"
    ) -> dict[str, Jagged]:
        """The rows of every field, in the order of its placement.

        Raises RowsLost when a unit no longer has a chunk, CorruptChunk, StorageUnreachable.
        """
        columns, by_unit = plan_reads(fields, self._pool, checksums=self._checksums)

        def read(unit: StorageUnit, reads: list[ChunkRead]) -> list[ChunkRef]:
            known = self._known[unit.index]
            return unit.exchange(read_chunks, reads, known, deadline=deadline, waiting=waiting)

        for known in self._known:
            if len(known) > KNOWN_CHUNKS:
                known.clear()

        num_bytes = sum(column.values.nbytes for column in columns.values())
        outcomes = self._each(read, by_unit, num_bytes)
        lost = [chunk for outcome in outcomes.values() if isinstance(outcome, list) for chunk in outcome]
        if lost:
            raise self._rows_lost(lost, waiting)
        for outcome in outcomes.values():
            if isinstance(outcome, QueueError):
                raise outcome
        return columns

    def fetch_what_is_there(
        self, fields: Mapping[str, FieldPlacement], *, deadline: float, waiting: str
    ) -> dict[str, Jagged]:
        """Of fields that may be done without, each in chunks that have its name, those of which all can be read.

        From all units at the same time: one that is away is asked once, and takes none from the others.
        """
        columns, by_unit = plan_reads(fields, self._pool, checksums=self._checksums)
        until = deadline + sum(column.values.nbytes for column in columns.values()) / SLOW_BYTES_PER_SECOND

        def missing(unit: StorageUnit, reads: list[ChunkRead]) -> list[ChunkRef]:
            damaged: list[ChunkRef] = []
            while True:
                left = [read for read in reads if read.chunk not in damaged]
                try:
                    known = self._known[unit.index]
                    return damaged + unit.exchange(read_chunks, left, known, deadline=until, waiting=waiting)
                except CorruptChunk as error:
                    if error.chunk is None:
                        raise
                    damaged.append(error.chunk)

        outcomes = self._at_once(missing, by_unit)
        for unit, reads in by_unit.items():
            outcome = outcomes[unit]
            for chunk in outcome if isinstance(outcome, list) else [read.chunk for read in reads]:
                columns.pop(chunk.field, None)
        return columns

    def fetch_undamaged(
        self, fields: Mapping[str, FieldPlacement], *, deadline: float, waiting: str
    ) -> dict[str, Jagged]:
        """As `fetch`. A chunk that two readings find damaged alike is lost: it is deleted and named in RowsLost.

        Raises CorruptChunk where the bytes come damaged and differently each time, or the control state is damaged.
        """
        try:
            return self.fetch(fields, deadline=deadline, waiting=waiting)
        except CorruptChunk as error:
            if error.chunk is None:
                raise
        damaged = [
            (single.chunks[0], what)
            for field, single in _one_by_one(fields)
            if (what := self._damage({field: single}, deadline, waiting)) is not None
        ]
        if not damaged:
            return self.fetch(fields, deadline=deadline, waiting=waiting)
        lost = self._rows_damaged(damaged, waiting)
        _LOG.error("%s", lost)
        self.delete([chunk for chunk, _ in damaged], deadline=deadline)
        raise lost

    def delete(self, chunks: Sequence[ChunkRef], *, deadline: float) -> int:
        """Deletes chunks that are good for nothing (of a put that came too late); returns how many there were.

        From all units at the same time: one that is away takes none from the others. What it has is deleted when it is
        back.
        """
        by_unit: dict[int, list[ChunkRef]] = {}
        for chunk in chunks:
            by_unit.setdefault(chunk.unit, []).append(chunk)

        def delete(unit: StorageUnit, share: list[ChunkRef]) -> int:
            return unit.delete([chunk.key for chunk in share], deadline=deadline)

        outcomes = self._at_once(delete, by_unit)
        self._take_back(
            chunk for unit, share in by_unit.items() if not isinstance(outcomes[unit], int) for chunk in share
        )
        return sum(outcome for outcome in outcomes.values() if isinstance(outcome, int))

    def _damage(self, single: Mapping[str, FieldPlacement], deadline: float, waiting: str) -> str | None:
        """What is wrong with the stored chunk; None where a reading was right, or it came damaged in two ways."""
        reports = set()
        for _ in range(2):
            try:
                self.fetch(single, deadline=deadline, waiting=waiting)
            except CorruptChunk as error:
                reports.add(str(error).removeprefix("TransferQueue: "))
            except RowsLost:
                return None  # another reader was faster; the next reading of all finds it gone
            else:
                return None
        return reports.pop() if len(reports) == 1 else None

    def _rows_damaged(self, damaged: Sequence[tuple[ChunkRef, str]], waiting: str) -> RowsLost:
        (first, what), more = damaged[0], len(damaged) - 1
        others = f" ({more} more of {', '.join(sorted({chunk.field for chunk, _ in damaged}))})" if more else ""
        return RowsLost(
            f"TransferQueue: {self.name_of(first.unit)} keeps chunk {first.key} of {first.field} damaged{others}, as"
            f" two readings say: {what}; {waiting}. It is deleted, and the coordinator decides what is computed or"
            " generated again. Check the memory of that server.",
            sorted({chunk.unit for chunk, _ in damaged}),
        )

    def _take_back(self, chunks: Iterable[ChunkRef]) -> None:
        """Deletes what was stored of a put that failed: on a unit that is away, when it is back."""
        for chunk in chunks:
            self._left_behind[chunk.unit].append(chunk.key.encode())

    def _each(
        self, work: Callable[[StorageUnit, list[S]], T], shares: Mapping[int, list[S]], num_bytes: int
    ) -> dict[int, T | QueueError]:
        """Unit -> what `work(unit, share)` gave, or its error; in a thread per unit where the bytes are worth it.

        Raises what is no QueueError when all have ended.
        """
        if num_bytes > SPREAD_BYTES:
            return self._at_once(work, shares)
        return {index: self._outcome(work, index, share) for index, share in shares.items()}

    def _at_once(
        self, work: Callable[[StorageUnit, list[S]], T], shares: Mapping[int, list[S]]
    ) -> dict[int, T | QueueError]:
        """As `_each`, so that no unit waits for another."""
        if len(shares) <= 1:
            return {index: self._outcome(work, index, share) for index, share in shares.items()}
        if self._threads is None:
            self._threads = ThreadPoolExecutor(len(self._units), thread_name_prefix="rljob-storage")
        begun: dict[int, Future[T | QueueError]] = {}
        try:
            for index, share in shares.items():
                begun[index] = self._threads.submit(self._outcome, work, index, share)
            wait(begun.values())
        finally:
            # Behind an exception no thread may go on.
            for outcome in begun.values():
                outcome.cancel()
            wait(begun.values())
        return {index: outcome.result() for index, outcome in begun.items()}

    def _outcome(self, work: Callable[[StorageUnit, list[S]], T], index: int, share: list[S]) -> T | QueueError:
        try:
            return work(self._units[index], share)
        except QueueError as error:
            return error

    def _store_round(
        self, pieces: Sequence[Piece], placed: dict[Piece, ChunkRef], deadline: float, waiting: str
    ) -> dict[int, Trouble]:
        """Tries each piece on one unit; adds to `placed`, shuns the units that failed and returns their troubles."""
        began = self._clock()

        def write(unit: StorageUnit, share: list[Piece]) -> dict[Piece, ChunkRef]:
            num_bytes = sum(piece.num_bytes for piece in share)
            until = min(deadline, began + self._timing.unit_patience_seconds + num_bytes / SLOW_BYTES_PER_SECOND)
            return self._write(unit, share, deadline if len(self._units) == 1 else until, waiting)

        shares = deal(pieces, self._preferred_units())
        outcomes = self._each(write, shares, sum(piece.num_bytes for piece in pieces))
        troubles: dict[int, Trouble] = {}
        for index, outcome in outcomes.items():
            if isinstance(outcome, dict):
                placed.update(outcome)
                continue
            if not isinstance(outcome, StorageFull | StorageUnreachable):
                raise outcome
            self._shunned_until[index] = self._clock() + SHUN_SECONDS
            troubles[index] = outcome
        return troubles

    def _preferred_units(self) -> list[int]:
        """Units that are not shunned, the next in turn first; where all are, those shunned longest ago first."""
        turn = next(self._turns)
        indices = [(turn + step) % len(self._units) for step in range(len(self._units))]
        good = self._good_units()
        if good:
            return [index for index in indices if index in good]
        return sorted(indices, key=lambda index: self._shunned_until[index])

    def _good_units(self) -> set[int]:
        """Those that are not shunned."""
        now = self._clock()
        return {index for index, until in enumerate(self._shunned_until) if until <= now}

    def _write(self, unit: StorageUnit, pieces: list[Piece], until: float, waiting: str) -> dict[Piece, ChunkRef]:
        refs = unit.exchange(self._try_write, unit, pieces, deadline=until, waiting=waiting)
        if refs is None:
            num_bytes = sum(piece.num_bytes for piece in pieces)
            raise StorageFull(
                f"TransferQueue: {unit} has no room for {num_bytes} bytes; {waiting}."
                " Raise transferQueue.storageBytes or storageUnits."
            )
        return refs

    def _try_write(
        self, connection: RespConnection, until: float, unit: StorageUnit, pieces: list[Piece]
    ) -> dict[Piece, ChunkRef] | None:
        """None where the unit is full."""
        left_behind = self._left_behind[unit.index]
        generation = unit.marked_generation(connection, until)
        if left_behind:
            connection.call(b"UNLINK", *left_behind, deadline=until)
            left_behind.clear()
        # Each attempt draws new keys: what a broken connection left behind is never written again.
        refs = {piece: self._reference(unit.index, generation, piece) for piece in pieces}
        keys = [ref.key.encode() for ref in refs.values()]
        left_behind.extend(keys)
        if not write_chunks(connection, refs, until):
            connection.call(b"UNLINK", *keys, deadline=until)
            refs.clear()
        left_behind.clear()
        return refs or None

    def _reference(self, unit: int, generation: int, piece: Piece) -> ChunkRef:
        key = f"{self._key_prefix}{next(self._nonces):x}"
        return ChunkRef(
            unit,
            generation,
            key,
            piece.field,
            piece.first_row,
            piece.num_rows,
            piece.dtype,
            piece.inner_shape,
            piece.num_bytes,
        )

    def _rows_lost(self, lost: Sequence[ChunkRef], waiting: str) -> RowsLost:
        units = sorted({chunk.unit for chunk in lost})
        fields = ", ".join(sorted({chunk.field for chunk in lost}))
        names = ", ".join(map(self.name_of, units))
        return RowsLost(
            f"TransferQueue: {names} no longer has {len(lost)} chunks ({fields}), the first is {lost[0].key};"
            f" {waiting}. The coordinator decides what is computed or generated again.",
            units,
        )


def _one_by_one(fields: Mapping[str, FieldPlacement]) -> Iterator[tuple[str, FieldPlacement]]:
    """Every chunk by itself, with the rows that lie in it."""
    for field, placement in fields.items():
        for place, chunk in enumerate(placement.chunks):
            rows = placement.rows[placement.rows[:, 0] == place]  # a copy
            rows[:, 0] = 0
            yield field, FieldPlacement((chunk,), rows)


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


def _combined(troubles: Mapping[int, Trouble], seconds: float) -> Trouble:
    kind = StorageFull if any(isinstance(trouble, StorageFull) for trouble in troubles.values()) else StorageUnreachable
    return kind(" ".join([*map(str, troubles.values()), f"Given up after {seconds:.1f} s."]))
