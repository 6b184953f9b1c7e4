"""One incarnation's changes across both planes: a put stores bytes, then commits; a claim takes rows, then fetches.

For `client`, from one thread. A put that dies in between leaves bytes that the coordinator sweeps. A claim whose bytes
do not arrive hands its rows back; a chunk that two readings find damaged alike is reported lost and deleted.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rljob_api.failpoints import failpoint
from rljob_api.names import RolloutId
from rljob_api.wire.identity import Endpoints, Life, WeightId
from rljob_workers.tensors.jagged import Column, Jagged
from rljob_workers.transfer_queue.control.connection import (
    Argument,
    Attempt,
    Clock,
    ControlConnection,
    Sleep,
    StaleUnit,
)
from rljob_workers.transfer_queue.control.library import library
from rljob_workers.transfer_queue.errors import (
    ControlUnreachable,
    CorruptChunk,
    NotOpen,
    RowsLost,
    StorageFull,
    StorageUnreachable,
)
from rljob_workers.transfer_queue.row_format import (
    ChunkIds,
    ChunkRef,
    ClaimedRows,
    FieldPlacement,
    field_arguments,
    parse_claim,
)
from rljob_workers.transfer_queue.storage import StorageUnits
from rljob_workers.transfer_queue.types import Batch, Claim, Exhausted, NotReady, QueueShape, QueueTiming, Task


class LifeAccess:
    """Shared by the parts of one client."""

    def __init__(
        self,
        endpoints: Endpoints,
        shape: QueueShape,
        life: Life,
        *,
        checksums: bool,
        counters: MutableMapping[str, float],
        timing: QueueTiming,
        clock: Clock,
        sleep: Sleep,
    ) -> None:
        """Connects when first used."""
        self.shape = shape
        self.life = life
        self.timing = timing
        self.clock = clock
        self.sleep = sleep
        self.control = ControlConnection(
            endpoints.control_redis, library(shape), timing=timing, clock=clock, sleep=sleep
        )
        self.units = StorageUnits(
            endpoints.storage_units,
            life.epoch,
            life.incarnation,
            checksums=checksums,
            timing=timing,
            clock=clock,
            sleep=sleep,
        )
        self.seen_seq = 0
        """Highest seq that any answer has shown."""
        self._counters = counters
        self._calls = 0

    def __str__(self) -> str:
        return str(self.life.key)

    def close(self) -> None:
        """Ends all connections; may be called twice."""
        self.control.close()
        self.units.close()

    def deadline(self) -> float:
        """For one change, or one put with its bytes, that begins now."""
        return self.clock() + self.timing.patience_seconds

    def count(self, name: str, number: int) -> None:
        """Adds to a counter of this rank."""
        self._counters[name] = self._counters.get(name, 0) + number

    def change(self, name: str, *args: Argument, waiting: str, deadline: float | None = None) -> list[Any]:
        """Calls a function that changes something, in this life's name; repeated until there is an answer."""
        self._calls += 1
        reply = self.control.change(
            name,
            self.life.epoch,
            self.life.incarnation,
            self._calls,
            *args,
            deadline=self.deadline() if deadline is None else deadline,
            waiting=waiting,
        )
        failpoint("queue.after_script")
        self.seen_seq = max(self.seen_seq, reply[0])
        return reply[1:]


Store = Callable[[Mapping[str, Column], Sequence[str], WeightId | None], list[Argument]]
"""Stores columns and gives what a commit says of these fields of them, made by this weight (None: by none)."""


class Commits:
    """Those of one client.

    reply = commits.commit("put", lambda store: [lease, *store(columns, fields, weight)], "who waits for what")
    """

    def __init__(self, access: LifeAccess) -> None:
        self._access = access
        self._chunk_ids = ChunkIds(access.life.incarnation)
        self._stored: list[ChunkRef] = []
        """Chunks of the put in hand."""

    def commit(self, name: str, arguments: Callable[[Store], list[Argument]], waiting: str) -> list[Any]:
        """Calls function `name` with `arguments`; all of it again where a unit came back empty in between."""
        deadline = self._access.deadline()

        def store(columns: Mapping[str, Column], fields: Sequence[str], weight: WeightId | None) -> list[Argument]:
            placements = self._access.units.store(columns, deadline=deadline, waiting=waiting).fields
            self._stored.extend(chunk for placement in placements.values() for chunk in placement.chunks)
            packed = [field_arguments(placements[field], self._chunk_ids, weight) for field in fields]
            return [argument for field in packed for argument in field]

        while True:
            self._stored.clear()
            try:
                packed = arguments(store)
                failpoint("queue.between_bytes_and_commit")
                reply = self._access.change(name, *packed, deadline=deadline, waiting=waiting)
                self._access.count("queue_put_bytes", sum(chunk.num_bytes for chunk in self._stored))
                return reply
            except (StaleUnit, StorageFull, StorageUnreachable) as error:
                self.take_back()
                if not isinstance(error, StaleUnit) or self._access.clock() >= deadline:
                    raise
                # The connection to that unit is still the old one; a new one learns the new generation.
                self._access.units.close()

    def take_back(self) -> None:
        """Deletes bytes that were not taken; what a unit that is away keeps of them goes when it is back."""
        deadline = self._access.clock() + self._access.timing.claim_patience_seconds
        self._access.units.delete(self._stored, deadline=deadline)


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


EXPLAIN_SECONDS = 2.0
"""How old the word may be which fields a training batch waits for."""


LOST_ROWS_PAUSE_SECONDS = 0.1
"""Before rows whose bytes are gone are asked for again; the coordinator has them made anew meanwhile."""


class Claims:
    """Those of one client."""

    def __init__(self, access: LifeAccess) -> None:
        self._access = access
        self._explained: tuple[float, str, str] = (float("-inf"), "", "")
        """When, of what, and what was missing for it."""
        self._unheard: list[str] = []
        """Leases that we may have without knowing: the next claim ends them."""

    def ask_rows(self, task: Task, partitions: range, max_rows: int, deadline: float, what: str) -> Attempt[Claim]:
        """Rows of a forward task, under a new lease; `what` names them. Tried until `deadline` and a little longer."""
        lease, lease_ms = secrets.token_hex(8), int(self._access.timing.lease_seconds * 1000)
        arguments: tuple[Argument, ...] = (partitions[0], partitions[-1], max_rows, lease, lease_ms, *self._unheard)
        # A server that hangs may do later what we gave up by then.
        self._unheard.append(lease)
        return self._ask("claim", task, arguments, deadline, what, lease)

    def ask_batch(self, task: Task, arguments: tuple[Argument, ...], deadline: float, what: str) -> Attempt[Claim]:
        """A share of a training batch, likewise."""
        return self._ask("claim_training", task, arguments, deadline, what, None)

    def _ask(
        self, name: str, task: Task, arguments: tuple[Argument, ...], deadline: float, what: str, lease: str | None
    ) -> Attempt[Claim]:
        waiting = f"{self._access} waits for {what}"
        until = self._beyond(deadline)
        try:
            reply = self._access.change(name, task.name, *arguments, deadline=until, waiting=waiting)
        except (ControlUnreachable, NotOpen) as error:
            return Attempt(NotReady(str(error)), is_final=False, stands=False)
        if lease is not None:
            self._unheard.clear()
        if reply[0] == b"E":
            return Attempt(Exhausted(), is_final=True)
        if reply[0] == b"N":
            return Attempt(NotReady(what), is_final=False)
        return self._fetch(parse_claim(reply[2:], reply[1], task.needs), lease, waiting)

    def release(self, lease: str, num_rows: int, deadline: float | None = None) -> None:
        """Hands a lease back; nothing if it ended already."""
        self._access.change("release", lease, deadline=deadline, waiting=f"{self._access} releases {num_rows} rows")

    def lacking(self, task: Task, rollout_id: RolloutId, what: str) -> str:
        """Which fields `what` misses; looked up seldom, since it goes over all groups of the partition."""
        since, of, told = self._explained
        now = self._access.clock()
        if of == what and now < since + EXPLAIN_SECONDS:
            return told
        try:
            lacking = self._access.control.read("lacking", task.name, rollout_id, deadline=now, waiting="")
        except (ControlUnreachable, NotOpen):
            return ""
        missing = [f"{field} ({count} rows)" for field, count in zip(task.needs, lacking, strict=True) if count]
        told = f"; missing: {', '.join(missing)}" if missing else ""
        self._explained = (self._access.clock(), what, told)
        return told

    def _beyond(self, deadline: float) -> float:
        return deadline + self._access.timing.claim_patience_seconds

    def _fetch(self, claimed: ClaimedRows, lease: str | None, waiting: str) -> Attempt[Claim]:
        try:
            columns = fetch_undamaged(self._access, claimed.fields, deadline=self._access.deadline(), waiting=waiting)
        except (StorageUnreachable, RowsLost, CorruptChunk) as error:
            if isinstance(error, CorruptChunk) and error.chunk is None:
                raise  # no reading cures what the control state says
            # Not waited for here: the caller beats, and asks again until the unit is back or the rows are made anew.
            # Where the control Redis does not answer either, the next claim ends the lease.
            if lease is not None:
                self._unheard.append(lease)
            with suppress(ControlUnreachable, NotOpen):
                until = self._beyond(self._access.clock())
                if isinstance(error, RowsLost):
                    # An empty unit the coordinator sees by itself; of single chunks it hears from who reads them.
                    self._access.change(
                        "report_missed", claimed.rollout_id, *error.units, deadline=until, waiting=waiting
                    )
                if lease is not None:
                    self.release(lease, len(claimed.rows), until)
                    self._unheard.remove(lease)
            self._access.sleep(LOST_ROWS_PAUSE_SECONDS)
            return Attempt(NotReady(str(error)), is_final=False, stands=False)
        self._access.count("queue_got_bytes", sum(column.values.nbytes for column in columns.values()))
        groups = claimed.rows // self._access.shape.samples_per_prompt
        batch = Batch(RolloutId(claimed.rollout_id), claimed.rows, groups, claimed.oldest, columns, lease)
        return Attempt(batch, is_final=True)
