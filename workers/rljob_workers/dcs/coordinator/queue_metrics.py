"""The queue's counts as samples for `/metrics`. Pure.

For `metrics`. Label values are tasks, states, units and reasons; a partition is none, since there is always another.
"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.wire.queue import QueueStats, RowState
from rljob_workers.telemetry.exposition import Family, Sample
from rljob_workers.transfer_queue.types import Withheld
from rljob_workers.transfer_queue.upkeep import DropReason

_TASK, _UNIT = ("task",), ("unit",)

FAMILIES = {
    "rljob_queue_seq": Family("Changes of the control state."),
    "rljob_queue_partitions": Family("Partitions with rows."),
    "rljob_queue_tickets_in_work": Family("Tickets that somebody works on."),
    "rljob_queue_tickets_returned": Family("Tickets that came back and wait to be given again."),
    "rljob_queue_draining": Family("1 while the queue drains."),
    "rljob_queue_withheld": Family("1 for why no ticket is given now.", ("reason",)),
    "rljob_queue_garbage_chunks": Family("Chunks that wait to be deleted."),
    "rljob_queue_garbage_partitions": Family("Partitions that wait to be deleted."),
    "rljob_queue_dropped_rows_total": Family("Rows that went because storage was full.", ("kind",)),
    "rljob_queue_rows": Family("Rows over all partitions.", ("task", "state")),
    "rljob_queue_leases": Family("Leases of a task.", _TASK),
    "rljob_queue_oldest_lease_seconds": Family("Age of its oldest lease.", _TASK),
    "rljob_queue_training_batches": Family("Training batches in the partitions that the queue has.", _TASK),
    "rljob_queue_unit_answers": Family("1 while the storage unit answers.", _UNIT),
    "rljob_queue_unit_used_bytes": Family("What it holds.", _UNIT),
    "rljob_queue_unit_limit_bytes": Family("What it may hold.", _UNIT),
    "rljob_queue_unit_keys": Family("Chunks that it holds.", _UNIT),
    "rljob_queue_unit_high_water_bytes": Family("Above this much no tickets are given.", _UNIT),
    "rljob_queue_unit_received_bytes_total": Family("Bytes that its connections brought.", _UNIT),
    "rljob_queue_unit_sent_bytes_total": Family("Bytes that its connections took.", _UNIT),
    "rljob_queue_unit_lost_chunks_total": Family("Chunks that it lost without being restarted.", _UNIT),
}
"""All that is told of the queue."""


def queue_samples(stats: QueueStats) -> Iterator[Sample]:
    """All of `rljob_queue_*`."""
    yield "rljob_queue_seq", (), float(stats.seq)
    yield "rljob_queue_partitions", (), float(len(stats.partitions))
    yield "rljob_queue_tickets_in_work", (), float(stats.tickets_in_work)
    yield "rljob_queue_tickets_returned", (), float(stats.tickets_returned)
    yield "rljob_queue_draining", (), float(stats.draining_since is not None)
    for reason in Withheld:
        yield "rljob_queue_withheld", (("reason", reason.value),), float(stats.withheld == reason)
    yield "rljob_queue_garbage_chunks", (), float(stats.garbage_chunks)
    yield "rljob_queue_garbage_partitions", (), float(stats.garbage_partitions)
    dropped = {DropReason.RETAINED: stats.dropped_retained_rows, DropReason.UNCLAIMED: stats.dropped_unclaimed_rows}
    for given, rows in dropped.items():
        yield "rljob_queue_dropped_rows_total", (("kind", given.value),), float(rows)
    yield from _task_samples(stats)
    yield from _unit_samples(stats)


def _task_samples(stats: QueueStats) -> Iterator[Sample]:
    for task in stats.tasks:
        label = ("task", task.task)
        rows = [row for partition in stats.partitions for row in partition.tasks if row.task == task.task]
        counts = {
            RowState.UNREADY: sum(row.unready for row in rows),
            RowState.READY: sum(row.ready for row in rows),
            RowState.CLAIMED: sum(row.claimed for row in rows),
            RowState.DONE: sum(row.done for row in rows),
        }
        for state, count in counts.items():
            yield "rljob_queue_rows", (label, ("state", state.value)), float(count)
        ages = [lease.age_seconds for lease in stats.leases if lease.task == task.task]
        yield "rljob_queue_leases", (label,), float(len(ages))
        yield "rljob_queue_oldest_lease_seconds", (label,), max(ages, default=0.0)
        yield "rljob_queue_training_batches", (label,), float(task.batches)


def _unit_samples(stats: QueueStats) -> Iterator[Sample]:
    for unit in stats.units:
        label = (("unit", str(unit.unit)),)
        if unit.answers is not None:
            yield "rljob_queue_unit_answers", label, float(unit.answers)
        figures = {"used_bytes": unit.used_bytes, "limit_bytes": unit.limit_bytes, "keys": unit.keys}
        figures["high_water_bytes"] = unit.high_water_bytes
        figures |= {"received_bytes_total": unit.received_bytes, "sent_bytes_total": unit.sent_bytes}
        figures["lost_chunks_total"] = unit.lost_chunks
        for name, value in figures.items():
            if value is not None:
                yield f"rljob_queue_unit_{name}", label, float(value)
