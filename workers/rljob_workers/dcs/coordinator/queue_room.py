"""The queue as users ask about it: counts, rows, invariants, the drain, and its counts as samples for `/metrics`.

The coordinator calls it in its thread. Checks the names in a request; the queue admin answers. Claims no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rljob_api.names import RolloutId, partition_name
from rljob_api.times import timestamp
from rljob_api.wire.observation import EventKind, QueueObservation, ServerState
from rljob_api.wire.queue import DrainRequest, DrainState, QueuePeek, QueueStats, RowState, Tickets
from rljob_workers.dcs.coordinator.context import CoordinatorContext, bad_request, not_found
from rljob_workers.dcs.coordinator.demand import Advance
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.server_gate import ServerGate
from rljob_workers.telemetry.exposition import Family, Sample
from rljob_workers.transfer_queue.inspection import drain_blockers, retained_by_drain
from rljob_workers.transfer_queue.peeking import RowQuery
from rljob_workers.transfer_queue.types import Withheld
from rljob_workers.transfer_queue.upkeep import DropReason

_TASK, _UNIT = ("task",), ("unit",)


FAMILIES = {
    "rljob_queue_seq": Family("Changes of the control state."),
    "rljob_queue_partitions": Family("Partitions with rows."),
    "rljob_queue_tickets_in_work": Family("Tickets that somebody works on."),
    "rljob_queue_tickets_returned": Family("Tickets that came back and wait to be given again."),
    "rljob_queue_oldest_ticket_seconds": Family("Age of the oldest of those in work."),
    "rljob_queue_swaps_total": Family("Groups that took the place of one that an earlier rollout waited for."),
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
"""All that is exported of the queue."""


def queue_samples(stats: QueueStats) -> Iterator[Sample]:
    """All of `rljob_queue_*`."""
    yield "rljob_queue_seq", (), float(stats.seq)
    yield "rljob_queue_partitions", (), float(len(stats.partitions))
    yield "rljob_queue_tickets_in_work", (), float(stats.tickets_in_work)
    yield "rljob_queue_tickets_returned", (), float(stats.tickets_returned)
    yield "rljob_queue_oldest_ticket_seconds", (), stats.oldest_ticket_seconds
    yield "rljob_queue_swaps_total", (), float(stats.swaps)
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


COUNTS_SECONDS = 0.2
"""After this long the counts in `/v1/status` are read again."""


_NO_COUNTS = QueueObservation(groups_issued=0, groups_capacity=0, rows_ready={}, withheld=None)


STATS_SECONDS = 1.0
"""For scrapes; a request for the statistics gets new ones."""


STATS_SHARE = 0.02
"""Largest share of the thread's time that scrapes may take: of a very large queue the figures get older instead."""


@dataclass(frozen=True, slots=True)
class PeekRequest:
    """The query of `GET /v1/queue/rows`, checked for its bounds only."""

    partition: int | None
    task: str | None
    state: RowState | None
    field: str | None
    first: int
    limit: int
    num_values: int


class QueueRoom:
    """Questions about the queue, and its drain."""

    def __init__(self, context: CoordinatorContext, epochs: Epochs, gate: ServerGate, advance: Advance) -> None:
        self._context = context
        self._advance = advance
        self._epochs = epochs
        self._gate = gate
        self._scraped: QueueStats | None = None
        self._scraped_until = float("-inf")
        self._counts = _NO_COUNTS
        self._counted_at = float("-inf")

    def observed_counts(self) -> QueueObservation:
        """For `/v1/status`; the last known ones while the control Redis is away."""
        now = self._context.clock()
        if self._gate.state is ServerState.OPEN and now - self._counted_at >= COUNTS_SECONDS:
            # The end of a drain counts as an advance: its time is of the control Redis's machine.
            self._counts = self._context.admin.stats().model_copy(update={"drained_until": None})
            self._counted_at = now
        return self._counts

    def stats(self) -> QueueStats:
        """As of now."""
        return self._context.admin.inspection.stats(self._context.job.metadata.name)

    def scraped(self) -> QueueStats | None:
        """A second old, or as old as their cost allows; None while the control Redis is not open."""
        if self._gate.state is not ServerState.OPEN:
            return None
        began = self._context.clock()
        if self._scraped is None or began >= self._scraped_until:
            self._scraped = self.stats()
            now = self._context.clock()
            self._scraped_until = now + max(STATS_SECONDS, (now - began) / STATS_SHARE)
        return self._scraped

    def check_steps(self) -> tuple[int, Iterator[Callable[[], list[str]]]]:
        """The proof of the invariants: of how many partitions, and its steps, each of which reports what is broken."""
        admin = self._context.admin
        partitions = admin.inspection.partitions()
        return len(partitions), admin.invariants.steps(partitions)

    def peek(self, request: PeekRequest) -> QueuePeek:
        """Rows, none of them claimed."""
        self._check_names(request)
        partitions = self._context.admin.inspection.partitions()
        if request.partition is not None:
            partitions = [self._one_of(partitions, request.partition)]
        return self._context.admin.peeking.rows(
            RowQuery(
                partitions,
                first=request.first,
                limit=request.limit,
                task=request.task,
                state=(request.state or RowState.READY) if request.task is not None else None,
                field=request.field,
                num_values=request.num_values,
            )
        )

    def drain(self, request: DrainRequest) -> DrainState:
        """Withholds tickets, or gives them again; reported once for each change."""
        before = self._context.admin.stats()
        if request.tickets is Tickets.WITHHOLD:
            self._context.admin.withhold_tickets()
        else:
            self._context.admin.give_tickets()
        self._counted_at = float("-inf")  # before any reader of the event asks for the status
        now = self._context.admin.stats()
        if (before.draining_since is None) != (now.draining_since is None):
            if now.draining_since is None:
                self._advance.tickets_given()
            self._emit(now.draining_since, now.drained_until)
        return self.drain_state()

    def drain_state(self) -> DrainState:
        """Whether tickets are withheld, and what a drained queue would still wait for."""
        stats = self.stats()
        return DrainState(
            draining_since=stats.draining_since, waits=drain_blockers(stats), stays=retained_by_drain(stats)
        )

    def _emit(self, since: float | None, until: float | None) -> None:
        kind = EventKind.QUEUE_DRAINS if since is not None else EventKind.TICKETS_GIVEN
        at = timestamp(since if since is not None else until or self._context.wall())
        message = (
            f"The queue drains: no ticket is given since {at}, until `rljob queue drain --off`."
            if since is not None
            else f"The drain was taken back at {at}: tickets are given again."
        )
        event = self._context.event(kind, self._epochs.current.restore.epoch, message)
        self._context.emit_once("drain", f"{since}/{until}", event)

    def _check_names(self, request: PeekRequest) -> None:
        tasks, fields = self._context.admin.peeking.tasks, self._context.admin.peeking.fields
        if request.task is not None and request.task not in tasks:
            raise bad_request(f"task: {request.task!r} is no task of this job. Name one of {_listed(tasks)}.")
        if request.field is not None and request.field not in fields:
            raise bad_request(f"field: {request.field!r} is no field of this job. Name one of {_listed(fields)}.")
        if request.state is not None and request.task is None:
            raise bad_request(f"state: {request.state.value} is a state for one task. Name the task, too.")

    def _one_of(self, partitions: list[RolloutId], wanted: int) -> RolloutId:
        if wanted in partitions:
            return RolloutId(wanted)
        there = _listed([partition_name(one) for one in partitions]) if partitions else "no partition"
        raise not_found(f"partition: {partition_name(RolloutId(wanted))} is not in the queue. It has {there}.")


def _listed(names: list[str] | tuple[str, ...]) -> str:
    shown = [*names[:20], *(["..."] if len(names) > 20 else [])]
    return ", ".join(shown)
