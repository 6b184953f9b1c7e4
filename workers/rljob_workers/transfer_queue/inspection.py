"""What a running queue holds: its counts, its broken invariants, and what a drain still waits for.

For the queue admin, the coordinator and tests. Changes nothing; every call on the control Redis is bounded, so that no
rank waits for an observer. Counts are read in the order in which rows move, so that an empty queue is really empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rljob_api.names import Epoch, Lineage, RolloutId, WeightVersion, partition_name
from rljob_api.wire.identity import Incarnation
from rljob_api.wire.queue import LeaseStats, PartitionStats, QueueStats, TaskRows, TaskStats, TicketHolder, UnitStats
from rljob_workers.transfer_queue.admin_calls import AdminCalls, Named
from rljob_workers.transfer_queue.control.connection import Argument
from rljob_workers.transfer_queue.row_format import ChunkRef, parse_chunk
from rljob_workers.transfer_queue.types import Task, TaskKind
from rljob_workers.transfer_queue.units import UnitFigures

ROWS_AT_ONCE = 16384
"""Rows that one call counts: a few milliseconds of the control Redis."""


_WAITING = "somebody looks at the queue"


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
    oldest_ticket_ms: int
    swaps: int


class QueueInspection:
    """Counts of one queue."""

    def __init__(self, calls: AdminCalls, figures: Mapping[int, UnitFigures | None], high_water: float) -> None:
        """`figures`: unit -> its last reported figures, None where it did not answer; the upkeep updates them."""
        self._calls = calls
        self._figures = figures
        self._high_water = high_water

    def stats(self, job: str) -> QueueStats:
        """Everything that is counted.

        Read in the order in which rows move (tickets, then leases, then the partitions), so that what is on its way
        from one to the next while this is read is counted twice rather than not at all.
        """
        whole = _Whole(*self._calls.read("inspect", waiting=_WAITING))
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
            oldest_ticket_seconds=whole.oldest_ticket_ms / 1000,
            swaps=whole.swaps,
            holders=_holders(whole.holders),
            partitions=partitions,
            tasks=[_task_stats(task, partitions, leases) for task in self._calls.shape.tasks],
            leases=leases,
            units=list(self._units(_by_unit(whole.units), _by_unit(whole.lost_chunks))),
            garbage_chunks=whole.garbage_chunks,
            garbage_partitions=whole.garbage_partitions,
            dropped_retained_rows=whole.dropped_retained,
            dropped_unclaimed_rows=whole.dropped_unclaimed,
        )

    def partitions(self) -> list[RolloutId]:
        """Those that have rows, oldest first."""
        whole = _Whole(*self._calls.read("inspect", waiting=_WAITING))
        return [RolloutId(int(name)) for name in whole.partitions]

    def _leases(self) -> list[LeaseStats]:
        """Oldest first."""
        reply = self._calls.read("inspect_leases", waiting=_WAITING)
        leases = [
            LeaseStats(
                lease=lease.decode(),
                task=task.decode(),
                partition=partition_name(RolloutId(rollout_id)),
                holder=_holder(incarnation),
                rows=rows,
                age_seconds=age / 1000,
                expires_in_seconds=left / 1000,
            )
            for lease, task, rollout_id, incarnation, rows, age, left in (
                reply[at : at + 7] for at in range(0, len(reply), 7)
            )
        ]
        return sorted(leases, key=lambda lease: -lease.age_seconds)

    def _partition(self, rollout_id: RolloutId) -> PartitionStats:
        shape = self._calls.shape
        at_once = max(1, ROWS_AT_ONCE // shape.samples_per_prompt)
        states, counts = b"", [[0] * 5 for _ in shape.tasks]
        for first in range(0, shape.batch_size, at_once):
            number = min(at_once, shape.batch_size - first)
            letters, *found = self._calls.read("inspect_groups", rollout_id, first, number, waiting=_WAITING)
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
        for unit in self._calls.units:
            reported = self._figures.get(unit.index)
            limit = reported.limit_bytes if reported is not None and reported.limit_bytes else None
            yield UnitStats(
                unit=unit.index,
                generation=marks.get(unit.index),
                answers=reported is not None if unit.index in self._figures else None,
                used_bytes=None if reported is None else reported.used_bytes,
                limit_bytes=limit,
                high_water_bytes=None if limit is None else int(limit * self._high_water),
                keys=None if reported is None else reported.keys,
                received_bytes=None if reported is None else reported.received_bytes,
                sent_bytes=None if reported is None else reported.sent_bytes,
                lost_chunks=lost.get(unit.index, 0),
            )


def _by_unit(pairs: Sequence[bytes]) -> dict[int, int]:
    return {int(unit): int(figure) for unit, figure in zip(pairs[::2], pairs[1::2], strict=True)}


def unix_seconds(milliseconds: bytes) -> float | None:
    """A time that the control Redis noted; empty where there is none."""
    return int(milliseconds) / 1000 if milliseconds else None


def _holder(incarnation: bytes) -> str:
    """An incarnation that ended since the read has no name any more."""
    return str(Incarnation.model_validate_json(incarnation).key) if incarnation else "nobody"


def _holders(found: Sequence[Any]) -> list[TicketHolder]:
    pairs = zip(found[::2], found[1::2], strict=True)
    held = [TicketHolder(holder=_holder(incarnation), tickets=tickets) for incarnation, tickets in pairs]
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
        publishes=task.kind is TaskKind.TRAINING and task.publishes,
        rows_ready=sum(row.ready for row in rows),
        batches=sum(row.batches for row in rows),
    )


_CHECKING = "a check of the invariants"


GROUPS_AT_ONCE = 128
"""As in `lua/observe.lua`."""


class QueueInvariants:
    """The proof of one queue."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    def broken(self, partitions: list[RolloutId]) -> list[str]:
        """Every broken invariant in a sentence; empty when all hold."""
        return list(dict.fromkeys(line for step in self.steps(partitions) for line in step()))

    def steps(self, partitions: list[RolloutId]) -> Iterator[Callable[[], list[str]]]:
        """The same in steps of milliseconds, for callers that do other work in between."""
        shape = self._calls.shape
        parts: list[tuple[Argument, ...]] = [(task.name,) for task in shape.tasks]
        parts += [(":chunks", field) for field in shape.fields]
        parts += [(":groups", first) for first in range(0, shape.batch_size, GROUPS_AT_ONCE)]
        yield partial(self._part, "")
        for rollout_id in partitions:
            for part in parts:
                yield partial(self._part, rollout_id, *part)
        for rollout_id in partitions:
            yield partial(self._missing_bytes, rollout_id)

    def _part(self, *part: Argument) -> list[str]:
        return [line.decode() for line in self._calls.read("check", *part, waiting=_CHECKING)]

    def _missing_bytes(self, rollout_id: RolloutId) -> list[str]:
        suspects = self._named(rollout_id)
        for unit in self._calls.units:
            mine = [key for key, chunk in suspects.items() if chunk.unit == unit.index]
            with self._calls.lock:
                present = unit.present(mine, deadline=self._calls.deadline())
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
        known = self._calls.known_generations(_CHECKING)
        chunks = [parse_chunk(line) for _, line in self._calls.chunks(Named.RETAINED, rollout_id, _CHECKING)]
        return {chunk.key: chunk for chunk in chunks if known.get(chunk.unit) == chunk.unit_generation}


MAX_LEASES = 3
"""Named in the sentence; the others are counted."""


def drain_blockers(stats: QueueStats) -> list[str]:
    """What is issued and neither consumed nor back, in a sentence each; empty once nothing can move any more.

    Rows move without new tickets as long as a rank has them (tickets, leases, batches), in partitions that are
    published and that some training task has yet to consume, and in the partition that is trained next: its forward
    tasks have the weights that they need, and if it is whole it will be trained. Rows behind an incomplete partition
    wait for weights that no training will make before tickets are given again.
    """
    return [*_tickets(stats), *_claimed(stats), *_published(stats), *_next_partition(stats)]


def retained_by_drain(stats: QueueStats) -> list[str]:
    """Rows that cannot be consumed before tickets are given again, in a sentence for each partition."""
    return [
        f"{one.partition}: {one.groups_put} groups are put, {missing} are not; they stay until tickets are given again"
        for one in stats.partitions
        if one.rollout_id >= stats.published
        and one.groups_put
        and (missing := one.groups_missing + one.groups_returned + one.groups_issued)
    ]


def _tickets(stats: QueueStats) -> Iterator[str]:
    if stats.tickets_in_work:
        by = ", ".join(f"{one.holder} {one.tickets}" for one in stats.holders) or "nobody alive"
        yield f"{stats.tickets_in_work} tickets are in work ({by})"


def _claimed(stats: QueueStats) -> Iterator[str]:
    for task in stats.tasks:
        if task.rows_claimed and task.kind != "Training":
            leases = [lease for lease in stats.leases if lease.task == task.task]
            yield f"{task.rows_claimed} rows are claimed for {task.task}" + _by(leases)


def _by(leases: Sequence[LeaseStats]) -> str:
    if not leases:
        return ""
    named = [f"{lease.holder} {lease.rows} of {lease.partition}" for lease in leases[:MAX_LEASES]]
    more = [f"{len(leases) - MAX_LEASES} more"] if len(leases) > MAX_LEASES else []
    return f" ({', '.join([*named, *more])})"


def _published(stats: QueueStats) -> Iterator[str]:
    """What training tasks that do not publish are behind with."""
    training = _training(stats)
    for partition in stats.partitions:
        if partition.rollout_id < stats.published:
            for rows in _behind(partition, training):
                yield f"{partition.partition} is published and {_consumed(rows)}"


def _next_partition(stats: QueueStats) -> Iterator[str]:
    found = next((one for one in stats.partitions if one.rollout_id == stats.published), None)
    if found is None:
        return
    training = _training(stats)
    for rows in found.tasks:
        if rows.ready and rows.task not in training:
            yield f"{rows.ready} rows of {found.partition} are ready for {rows.task}, and nobody has claimed them"
    if _is_whole(found):
        publishing = {task.task for task in stats.tasks if task.publishes}
        yield from _untrained(found, training, publishing)


def _training(stats: QueueStats) -> set[str]:
    return {task.task for task in stats.tasks if task.kind == "Training"}


def _behind(partition: PartitionStats, training: set[str]) -> list[TaskRows]:
    return [rows for rows in partition.tasks if rows.task in training and rows.unready + rows.ready + rows.claimed]


def _consumed(rows: TaskRows) -> str:
    total = rows.unready + rows.ready + rows.claimed + rows.done
    return f"{rows.task} has consumed {rows.done} of its {total} rows"


def _is_whole(partition: PartitionStats) -> bool:
    return not (partition.groups_missing or partition.groups_returned or partition.groups_issued)


def _untrained(partition: PartitionStats, training: set[str], publishing: set[str]) -> Iterator[str]:
    behind = _behind(partition, training)
    for rows in behind:
        yield f"{partition.partition} is whole and {_consumed(rows)}"
    done = {rows.task for rows in partition.tasks} - {rows.task for rows in behind}
    for task in sorted(publishing & done):
        by = f" by {task}" if behind else ""
        yield f"{partition.partition} is trained{by} and its weights are not published yet"
