"""The queue as people ask about it: what is in it, whether it is in order, and the drain.

Called by the coordinator in its thread. Checks what is asked for by name; what the queue answers is the queue admin's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rljob_api.names import RolloutId, partition_name
from rljob_api.times import timestamp
from rljob_api.wire.observation import EventKind, ServerState
from rljob_api.wire.queue import DrainRequest, DrainState, QueuePeek, QueueStats, RowState, Tickets
from rljob_workers.dcs.coordinator.context import CoordinatorContext
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.refusals import bad_request, not_found
from rljob_workers.dcs.coordinator.server_state import ServerGate
from rljob_workers.transfer_queue.inspection import drain_blockers, retained_by_drain
from rljob_workers.transfer_queue.peeking import RowQuery

STATS_SECONDS = 1.0
"""For scrapes; whoever asks for the counts gets new ones."""
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

    def __init__(
        self, context: CoordinatorContext, epochs: Epochs, gate: ServerGate, changed: Callable[[], None]
    ) -> None:
        """`changed` is called when `/v1/status` must be counted anew, before anybody hears of the change."""
        self._context = context
        self._changed = changed
        self._epochs = epochs
        self._gate = gate
        self._scraped: QueueStats | None = None
        self._scraped_until = float("-inf")

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
        """Withholds tickets, or gives them again; told once for each change."""
        before = self._context.admin.stats()
        if request.tickets is Tickets.WITHHOLD:
            self._context.admin.withhold_tickets()
        else:
            self._context.admin.give_tickets()
        self._changed()
        now = self._context.admin.stats()
        if (before.draining_since is None) != (now.draining_since is None):
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
