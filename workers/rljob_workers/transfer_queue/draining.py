"""When a drained queue is empty: what is still to be consumed, who has it, and what stays until the drain is over.

Pure. For the coordinator, from the counts of `inspection`. The counts are read in the order in which rows move, so that
"nothing waits" is true and not a moment between two looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rljob_api.wire.queue import LeaseStats, PartitionStats, QueueStats

MAX_LEASES = 3
"""Named in the sentence; the others are counted."""


def waits(stats: QueueStats) -> list[str]:
    """What is issued and neither consumed nor back, in a sentence each; empty once nothing can move any more.

    Rows move without new tickets as long as somebody has them (tickets, leases, batches), and in the partition that is
    trained next: its forward tasks have the weights that they need, and if it is whole it will be trained. Rows behind
    an incomplete partition wait for weights that no training will make before tickets are given again.
    """
    return [*_tickets(stats), *_claimed(stats), *_next_partition(stats)]


def stays(stats: QueueStats) -> list[str]:
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


def _next_partition(stats: QueueStats) -> Iterator[str]:
    found = next((one for one in stats.partitions if one.rollout_id == stats.published), None)
    if found is None:
        return
    training = {task.task for task in stats.tasks if task.kind == "Training"}
    for rows in found.tasks:
        if rows.ready and rows.task not in training:
            yield f"{rows.ready} rows of {found.partition} are ready for {rows.task}, and nobody has claimed them"
    if _is_whole(found):
        yield from _untrained(found, training)


def _is_whole(partition: PartitionStats) -> bool:
    return not (partition.groups_missing or partition.groups_returned or partition.groups_issued)


def _untrained(partition: PartitionStats, training: set[str]) -> Iterator[str]:
    tasks = [rows for rows in partition.tasks if rows.task in training]
    behind = [rows for rows in tasks if rows.unready or rows.ready or rows.claimed]
    for rows in behind:
        total = rows.unready + rows.ready + rows.claimed + rows.done
        yield f"{partition.partition} is whole and {rows.task} has consumed {rows.done} of its {total} rows"
    if tasks and not behind:
        yield f"{partition.partition} is trained and its weights are not published yet"
