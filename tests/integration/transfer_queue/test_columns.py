"""Columns with an inner shape and of small dtypes, from the put to the batch of a training rank, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from rljob_api.names import Role, RolloutId
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.tensors.packed import RowExtra, pack_rows, unpack_rows
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import StorageFull
from rljob_workers.transfer_queue.types import (
    Batch,
    FieldKind,
    GroupRows,
    QueueShape,
    QueueTiming,
    Task,
    TaskKind,
    Ticket,
    Withheld,
)
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.world import make_incarnation
from tests.weights import weight

MakeJob = Callable[..., Job]
LAYERS, EXPERTS = 5, 2
KINDS = (
    FieldKind("routed", "uint8", (LAYERS, EXPERTS)),
    FieldKind("halves", "float16"),
    FieldKind("brains", "bfloat16", (3,)),
    FieldKind("flags", "bool"),
    FieldKind("extra", "uint8"),
    FieldKind("values", "bfloat16", (2,)),
)
GENERATED = tuple(kind.field for kind in KINDS[:-1])
VALUES = Task("value", TaskKind.FORWARD, ("routed", "extra"), ("values",))
TRAIN = Task("actor_train", TaskKind.TRAINING, (*GENERATED, "values"))
SHAPE = QueueShape(4, 2, 1, 6, 2, 50, GENERATED, (VALUES, TRAIN), KINDS)
LENGTHS = [(3, 0), (0, 0), (1, 7), (2, 2)]
"""Elements of the two rows of each group; a group may have none at all."""


def elements(kind: FieldKind, length: int, first: int) -> torch.Tensor:
    """[length, *inner]: no two rows alike."""
    numbers = torch.arange(first, first + length).view(length, *([1] * len(kind.inner)))
    return numbers.expand(length, *kind.inner).remainder(251 if kind.dtype == "uint8" else 97).to(
        getattr(torch, kind.dtype)
    ) + torch.zeros(kind.inner, dtype=getattr(torch, kind.dtype))


def rows_of(group: int, scale: int = 1) -> dict[str, list[torch.Tensor]]:
    """Field -> the rows of a group."""
    lengths = [length * scale for length in LENGTHS[group]]
    rows = {kind.field: [elements(kind, length, 10 * group) for length in lengths] for kind in KINDS[:-1]}
    rows["flags"] = [torch.tensor([group % 2 == place]) for place in range(2)]
    rows["halves"] = [torch.tensor([group + place / 2], dtype=torch.float16) for place in range(2)]
    rows["extra"] = pack_rows([RowExtra(), RowExtra({"reward/format": group / 4}, {"source": f"s{group}"})]).rows()
    return rows


def group_of(ticket: Ticket, scale: int = 1) -> GroupRows:
    columns = {field: Jagged.from_rows(rows) for field, rows in rows_of(ticket.group, scale).items()}
    return GroupRows(ticket, columns, [weight(0)] * 2, [weight(0)] * 2)


def put_values(client: TransferQueueClient, expected: Sequence[dict[str, list[torch.Tensor]]]) -> None:
    """Of all rows; the task's batches are what was put."""
    while isinstance(batch := client.claim(VALUES.name, range(1), 3, timeout=0), Batch):
        assert_rows(batch, VALUES.needs, expected)
        lengths = batch.columns["routed"].lengths
        values = torch.ones(int(lengths.sum()), 2, dtype=torch.bfloat16)
        client.put(batch, {"values": Jagged.from_lengths(values, lengths)}, weight=weight(0))


def assert_rows(batch: Batch, fields: Sequence[str], expected: Sequence[dict[str, list[torch.Tensor]]]) -> None:
    for field in fields:
        for place, row in enumerate(batch.rows.tolist()):
            found, wanted = batch.columns[field].row(place), expected[row // 2][field][row % 2]
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), (field, row)
            assert torch.equal(found, wanted), (field, row)


@pytest.mark.parametrize(
    ("scale", "checksums"), [(1, False), (1, True), (60_000, False)], ids=["small", "checksums", "over both units"]
)
def test_rows_keep_dtype_inner_shape_and_length(make_job: MakeJob, scale: int, checksums: bool) -> None:
    """Also rows without elements, alone in their group or not."""
    job = make_job(SHAPE, checksums=checksums)
    expected = [rows_of(group, scale) for group in range(4)]
    tickets = job.tickets(4)
    for some in (tickets[:1], tickets[1:2], tickets[2:]):
        assert all(job.rollout.put_groups([group_of(ticket, scale) for ticket in some]))
    put_values(job.client(Role.ACTOR_FWD), expected)
    batch = job.actor.claim_training(TRAIN.name, RolloutId(0), 0, 8, 0, 1, timeout=0)
    assert isinstance(batch, Batch), batch
    assert sorted(batch.rows.tolist()) == list(range(8))
    assert_rows(batch, GENERATED, expected)
    assert {tuple(row.shape[1:]) for row in batch.columns["values"].rows()} == {(2,)}
    extras = dict(zip(batch.rows.tolist(), unpack_rows(batch.columns["extra"]), strict=True))
    assert [extras[2 * group + 1].facts for group in range(4)] == [{"source": f"s{group}"} for group in range(4)]
    job.actor.commit_training(TRAIN.name, RolloutId(0), [0])


def test_a_column_that_differs_from_the_table_is_refused_before_anything_is_stored(make_job: MakeJob) -> None:
    job = make_job(SHAPE)
    (ticket,) = job.tickets(1)
    good = group_of(ticket)
    routed = good.columns["routed"]
    wider = Jagged(routed.values.to(torch.int32), routed.offsets)
    flat = Jagged(routed.values.flatten(1), routed.offsets)
    before = job.servers.unit_keys()
    for bad, found in ((wider, r"int32\[5, 2\]"), (flat, r"uint8\[10\]")):
        with pytest.raises(
            ValueError, match=rf"put_groups: routed is {found}, the table of columns says uint8\[5, 2\]"
        ):
            job.rollout.put_groups([replace(good, columns={**good.columns, "routed": bad})])
    assert all(job.rollout.put_groups([good]))
    client = job.client(Role.ACTOR_FWD)
    batch = client.claim(VALUES.name, range(1), 8, timeout=0)
    assert isinstance(batch, Batch)
    with pytest.raises(ValueError, match=r"put: values is float32, the table of columns says bfloat16\[2\]"):
        client.put(batch, {"values": Jagged.scalars(torch.zeros(2))}, weight=weight(0))
    client.release(batch)
    assert len(job.servers.unit_keys() - before) == len(GENERATED)


def test_bytes_of_an_inner_shape_count_in_memory(make_job: MakeJob) -> None:
    """A row of 1 MiB that is one element long: counters, the high-water mark, and room."""
    wide = FieldKind("routed", "uint8", (1024, 1024))
    shape = replace(SHAPE, kinds=(wide,), generated_fields=("routed",), tasks=(replace(TRAIN, needs=("routed",)),))
    job = make_job(shape, timing=QueueTiming(patience_seconds=1))
    counters: dict[str, float] = {}
    incarnation = make_incarnation(Role.ROLLOUT, 1, 1)
    job.admin.begin_incarnation(incarnation)
    client = TransferQueueClient(
        job.servers.endpoints, shape, incarnation, timing=QueueTiming(patience_seconds=1), counters=counters
    )
    job.clients.append(client)
    before = used_bytes(job)
    held = client.claim_tickets(weight(0), 1, 0)
    assert isinstance(held, list)
    other = job.tickets(3)[0]  # what is trained next gets tickets whatever is used
    assert all(client.put_groups([wide_group(held[0])]))
    assert counters["queue_put_bytes"] > 2 << 20
    assert used_bytes(job) - before >= 2 << 20
    try:
        limit(job, 256 << 10)
        job.admin.upkeep.probe()
        assert job.admin.upkeep.short_of_memory
        assert client.claim_tickets(weight(0), 1, 0) is Withheld.MEMORY
        with pytest.raises(StorageFull, match="has no room for 1048632 bytes"):
            job.rollout.put_groups([wide_group(other)])
    finally:
        limit(job, None)


def limit(job: Job, more_bytes: int | None) -> None:
    """Leaves each unit so much room; None: what it began with."""
    for unit in job.servers.units:
        with unit.admin() as admin:
            used = int(admin.info("memory")["used_memory"])
            admin.config_set("maxmemory", 64 << 20 if more_bytes is None else used + more_bytes)


def wide_group(ticket: Ticket) -> GroupRows:
    values = torch.full((2, 1024, 1024), ticket.group, dtype=torch.uint8)
    return GroupRows(ticket, {"routed": Jagged.scalars(values)}, [weight(0)] * 2, [weight(0)] * 2)


def used_bytes(job: Job) -> int:
    job.admin.upkeep.probe()
    return sum(figures.used_bytes for figures in job.admin.upkeep.figures.values() if figures is not None)
