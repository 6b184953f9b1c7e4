"""Counts and rows of a queue as lines and tables. Pure, but for the width of the terminal. For `rljob queue`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rljob_api.times import timestamp
from rljob_api.wire.queue import PartitionStats, QueuePeek, QueueRow, QueueStats, RowValues, UnitStats, WeightSpan
from rljob_cli.ui.tables import drawn, size_text, table

if TYPE_CHECKING:
    from rich.table import Table


MAX_LEASES = 10


_WITHHELD = {
    "Draining": "somebody drains the queue",
    "Staleness": "the open groups want newer weights than the published ones",
    "Capacity": "as many groups are issued as maxStaleness allows",
    "Memory": "a storage unit is above its high-water mark",
    "NoneOpen": "everything up to the last rollout is issued",
}


def stats_text(stats: QueueStats) -> str:
    """The answer of `rljob queue stats`."""
    parts = [*_headlines(stats), "", drawn(_rows_table(stats.partitions))]
    if stats.leases:
        parts += ["", drawn(_lease_table(stats))]
    return "\n".join([*parts, "", drawn(_unit_table(stats.units))])


def peek_text(peek: QueuePeek) -> str:
    """The answer of `rljob queue peek`."""
    if not peek.rows:
        return "There is no such row."
    lines = [line for row in peek.rows for line in _row_lines(row)]
    return "\n".join([*lines, *(["... and more: see --first and --limit."] if peek.more else [])])


def _headlines(stats: QueueStats) -> Iterator[str]:
    recorded = "none" if stats.recorded is None else str(stats.recorded)
    yield (
        f"{stats.job}: epoch {stats.epoch}, lineage {stats.lineage}, seq {stats.seq}; published version"
        f" {stats.published}, recorded {recorded}"
    )
    for task, partitions in _behind(stats):
        yield f"{task} is behind what is published: it has yet to consume {', '.join(partitions)}"
    held = ", ".join(f"{one.holder} {one.tickets}" for one in stats.holders)
    yield (
        f"tickets: {stats.tickets_in_work} in work" + (f" ({held})" if held else "") + f", {stats.tickets_returned}"
        f" returned; {stats.groups_issued} of {stats.groups_capacity} groups issued"
    )
    if stats.withheld is not None:
        yield f"withheld: {stats.withheld} ({_WITHHELD.get(stats.withheld, 'no ticket is given')})"
    if stats.draining_since is not None:
        yield f"draining since {timestamp(stats.draining_since)}; `rljob queue drain --off` gives tickets again"
    if stats.leases:
        oldest = stats.leases[0]
        yield f"oldest lease: {oldest.holder}, {oldest.rows} rows of {oldest.partition}, {oldest.age_seconds:.1f} s"
    if stats.swaps:
        yield f"exchanged: {stats.swaps} groups took the place of one that an earlier rollout waited for"
    if stats.dropped_retained_rows or stats.dropped_unclaimed_rows:
        yield (
            f"dropped, since storage was full: {stats.dropped_retained_rows} rows kept for a restore,"
            f" {stats.dropped_unclaimed_rows} generated again"
        )
    yield f"garbage: {stats.garbage_chunks} chunks, {stats.garbage_partitions} partitions"


def _behind(stats: QueueStats) -> Iterator[tuple[str, list[str]]]:
    """Training tasks that do not publish, with the published partitions that they have not consumed."""
    published = [one for one in stats.partitions if one.rollout_id < stats.published]
    for task in stats.tasks:
        if task.kind != "Training" or task.publishes:
            continue
        late = [
            one.partition
            for one in published
            if any(rows.task == task.task and rows.unready + rows.ready + rows.claimed for rows in one.tasks)
        ]
        if late:
            yield task.task, late


def _rows_table(partitions: Sequence[PartitionStats]) -> Table:
    made = table("partition", "groups", "task", "unready:", "ready:", "claimed:", "done:", "batches:")
    for partition in partitions:
        first = [partition.partition, _groups(partition)]
        for rows in partition.tasks:
            counts = (rows.unready, rows.ready, rows.claimed, rows.done, rows.batches)
            made.add_row(*first, rows.task, *map(str, counts))
            first = ["", ""]
    return made


def _groups(partition: PartitionStats) -> str:
    counts = {
        "put": partition.groups_put,
        "issued": partition.groups_issued,
        "returned": partition.groups_returned,
        "absent": partition.groups_absent,
        "missing": partition.groups_missing,
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _lease_table(stats: QueueStats) -> Table:
    made = table("lease of", "task", "partition", "rows:", "age:", "ends in:")
    for lease in stats.leases[:MAX_LEASES]:
        times = (f"{lease.age_seconds:.1f} s", f"{lease.expires_in_seconds:.1f} s")
        made.add_row(lease.holder, lease.task, lease.partition, str(lease.rows), *times)
    if len(stats.leases) > MAX_LEASES:
        made.add_row(f"{len(stats.leases) - MAX_LEASES} more")
    return made


def _unit_table(units: Sequence[UnitStats]) -> Table:
    some_lost = any(unit.lost_chunks for unit in units)
    made = table(
        "unit", "generation:", "used:", "high water:", "limit:", "keys:", *(["lost chunks:"] if some_lost else [])
    )
    for unit in units:
        generation = "-" if unit.generation is None else str(unit.generation)
        if not unit.answers:
            silent = "not asked yet" if unit.answers is None else "does not answer"
            made.add_row(str(unit.unit), generation, silent)
            continue
        sizes = (unit.used_bytes, unit.high_water_bytes, unit.limit_bytes)
        counts = ("-" if unit.keys is None else str(unit.keys), *([str(unit.lost_chunks)] if some_lost else []))
        made.add_row(str(unit.unit), generation, *("-" if size is None else size_text(size) for size in sizes), *counts)
    return made


def _row_lines(row: QueueRow) -> Iterator[str]:
    states = ", ".join(f"{task} {state.value}" for task, state in row.states.items())
    yield f"{row.partition} row {row.row} (group {row.group}, {row.group_state}): {states}"
    if row.lengths:
        fields = ", ".join(f"{field}[{length}]" for field, length in row.lengths.items())
        yield f"  has {fields}; made by {_weights(row.oldest, row.newest)}"
    if row.field is not None:
        yield f"  {_values(row.field)}"


def _weights(oldest: WeightSpan | None, newest: WeightSpan | None) -> str:
    names = dict.fromkeys(f"v{one.version}@{one.lineage}" for one in (oldest, newest) if one is not None)
    return " to ".join(names)


def _values(shown: RowValues) -> str:
    kind = f"{shown.dtype}{list(shown.shape) if shown.shape else ''}"
    if shown.values is None:
        return f"{kind}: its bytes are gone"
    values = ", ".join("nan or inf" if value is None else str(value) for value in shown.values)
    elements = shown.length
    for size in shown.shape:
        elements *= size
    return f"{kind}: [{values}{', ...' if len(shown.values) < elements else ''}]"
