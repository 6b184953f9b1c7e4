"""What a running queue looks like: rows by partition and state, tickets, leases, units, garbage.

For the coordinator's queue admin only. Changes nothing, and asks the control Redis in calls that are each bounded, so
that nobody at work waits for someone who looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api.names import Epoch, Lineage, RolloutId, WeightVersion, partition_name
from rljob_api.wire.identity import Life
from rljob_api.wire.queue import (
    LeaseStats,
    PartitionStats,
    QueueStats,
    TaskRows,
    TaskStats,
    TicketHolder,
    UnitStats,
)
from rljob_workers.transfer_queue.read_access import ReadAccess
from rljob_workers.transfer_queue.types import Task

ROWS_AT_ONCE = 16384
"""Rows that one call counts: a few milliseconds of the control Redis."""
_WAITING = "somebody looks at the queue"


@dataclass(frozen=True, slots=True)
class UnitFigures:
    """What a storage unit said of itself."""

    used_bytes: int
    limit_bytes: int
    """0: none."""
    keys: int
    received_bytes: int
    """On its connections, since it was started."""
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class _Whole:
    """The answer of `inspect`."""

    epoch: int
    lineage: int
    seq: int
    published: int
    recorded: int
    groups_issued: int
    groups_capacity: int
    withheld: bytes
    draining: bytes
    drained_until: bytes
    tickets_in_work: int
    tickets_returned: int
    garbage_chunks: int
    garbage_partitions: int
    dropped_retained: int
    dropped_unclaimed: int
    partitions: Sequence[bytes]
    holders: Sequence[Any]
    units: Sequence[bytes]
    lost_chunks: Sequence[bytes]


class QueueInspection:
    """Counts of one queue."""

    def __init__(self, access: ReadAccess, figures: Mapping[int, UnitFigures | None], high_water: float) -> None:
        """`figures`: unit -> what it said last, None where it did not answer; kept up to date by the queue admin."""
        self._access = access
        self._figures = figures
        self._high_water = high_water

    def stats(self, job: str) -> QueueStats:
        """Everything that is counted.

        Read in the order in which rows move (tickets, then leases, then the partitions), so that what is on its way
        from one to the next while this is read is counted twice rather than not at all.
        """
        whole = _Whole(*self._access.read("inspect", waiting=_WAITING))
        leases = self._leases()
        partitions = [self._partition(RolloutId(int(name))) for name in whole.partitions]
        return QueueStats(
            job=job,
            epoch=Epoch(whole.epoch),
            lineage=Lineage(whole.lineage),
            seq=whole.seq,
            published=WeightVersion(whole.published),
            recorded=None if whole.recorded < 0 else WeightVersion(whole.recorded),
            groups_issued=whole.groups_issued,
            groups_capacity=whole.groups_capacity,
            withheld=whole.withheld.decode() or None,
            draining_since=unix_seconds(whole.draining),
            tickets_in_work=whole.tickets_in_work,
            tickets_returned=whole.tickets_returned,
            holders=_holders(whole.holders),
            partitions=partitions,
            tasks=[_task_stats(task, partitions, leases) for task in self._access.shape.tasks],
            leases=leases,
            units=list(self._units(_by_unit(whole.units), _by_unit(whole.lost_chunks))),
            garbage_chunks=whole.garbage_chunks,
            garbage_partitions=whole.garbage_partitions,
            dropped_retained_rows=whole.dropped_retained,
            dropped_unclaimed_rows=whole.dropped_unclaimed,
        )

    def partitions(self) -> list[RolloutId]:
        """Those that have rows, oldest first."""
        whole = _Whole(*self._access.read("inspect", waiting=_WAITING))
        return [RolloutId(int(name)) for name in whole.partitions]

    def _leases(self) -> list[LeaseStats]:
        """Oldest first."""
        reply = self._access.read("inspect_leases", waiting=_WAITING)
        leases = [
            LeaseStats(
                lease=lease.decode(),
                task=task.decode(),
                partition=partition_name(RolloutId(rollout_id)),
                holder=_holder(life),
                rows=rows,
                age_seconds=age / 1000,
                expires_in_seconds=left / 1000,
            )
            for lease, task, rollout_id, life, rows, age, left in (reply[at : at + 7] for at in range(0, len(reply), 7))
        ]
        return sorted(leases, key=lambda lease: -lease.age_seconds)

    def _partition(self, rollout_id: RolloutId) -> PartitionStats:
        shape = self._access.shape
        at_once = max(1, ROWS_AT_ONCE // shape.samples_per_prompt)
        states, counts = b"", [[0] * 5 for _ in shape.tasks]
        for first in range(0, shape.batch_size, at_once):
            number = min(at_once, shape.batch_size - first)
            letters, *found = self._access.read("inspect_groups", rollout_id, first, number, waiting=_WAITING)
            states += letters
            for place, sums in enumerate(counts):
                sums[:4] = [old + new for old, new in zip(sums, found[place * 5 : place * 5 + 4], strict=False)]
                sums[4] = found[place * 5 + 4]
        return PartitionStats(
            partition=partition_name(rollout_id),
            rollout_id=rollout_id,
            groups_put=states.count(b"p"),
            groups_issued=states.count(b"i"),
            groups_returned=states.count(b"w"),
            groups_absent=states.count(b"a"),
            groups_missing=states.count(b"u") + states.count(b"o"),
            tasks=[_task_rows(task, sums) for task, sums in zip(shape.tasks, counts, strict=True)],
        )

    def _units(self, marks: Mapping[int, int], lost: Mapping[int, int]) -> Iterator[UnitStats]:
        for unit in self._access.units:
            said = self._figures.get(unit.index)
            limit = said.limit_bytes if said is not None and said.limit_bytes else None
            yield UnitStats(
                unit=unit.index,
                generation=marks.get(unit.index),
                answers=said is not None if unit.index in self._figures else None,
                used_bytes=None if said is None else said.used_bytes,
                limit_bytes=limit,
                high_water_bytes=None if limit is None else int(limit * self._high_water),
                keys=None if said is None else said.keys,
                received_bytes=None if said is None else said.received_bytes,
                sent_bytes=None if said is None else said.sent_bytes,
                lost_chunks=lost.get(unit.index, 0),
            )


def _by_unit(pairs: Sequence[bytes]) -> dict[int, int]:
    return {int(unit): int(figure) for unit, figure in zip(pairs[::2], pairs[1::2], strict=True)}


def unix_seconds(milliseconds: bytes) -> float | None:
    """A time that the control Redis noted; empty where there is none."""
    return int(milliseconds) / 1000 if milliseconds else None


def _holder(life: bytes) -> str:
    """A life that ended in this moment has no name any more."""
    return str(Life.model_validate_json(life).key) if life else "nobody"


def _holders(found: Sequence[Any]) -> list[TicketHolder]:
    pairs = zip(found[::2], found[1::2], strict=True)
    held = [TicketHolder(holder=_holder(life), tickets=tickets) for life, tickets in pairs]
    return sorted(held, key=lambda one: one.holder)


def _task_rows(task: Task, sums: Sequence[int]) -> TaskRows:
    unready, ready, claimed, done, batches = sums
    return TaskRows(task=task.name, unready=unready, ready=ready, claimed=claimed, done=done, batches=batches)


def _task_stats(task: Task, partitions: Sequence[PartitionStats], leases: Sequence[LeaseStats]) -> TaskStats:
    rows = [row for partition in partitions for row in partition.tasks if row.task == task.name]
    return TaskStats(
        task=task.name,
        kind=task.kind.value,
        leases=sum(lease.task == task.name for lease in leases),
        rows_claimed=sum(row.claimed for row in rows),
        rows_ready=sum(row.ready for row in rows),
        batches=sum(row.batches for row in rows),
    )
