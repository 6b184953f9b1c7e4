"""Storage units without room: what goes first, who waits, and the name of the last failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from rljob_api.names import Role, RolloutId
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import LeaseLost, StorageFull
from rljob_workers.transfer_queue.row_format import parse_chunk
from rljob_workers.transfer_queue.types import Batch, Exhausted, GroupRows, NotReady, QueueTiming, Ticket, Withheld
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.world import LOG_PROBS, TRAIN
from tests.weights import weight

MakeJob = Callable[..., Job]
UNIT_BYTES = 64 << 20
IMPATIENT = QueueTiming(patience_seconds=3)
"""A put that finds no room gives up soon, but not before a server has given back what large commands took: 2 s."""
BATCH, ROW_BYTES = 32, 1 << 17
PARTITION_BYTES = 2 * BATCH * ROW_BYTES
"""Rows are small against a partition: what a server needs for a moment beside its values must not decide a test."""


@pytest.fixture
def narrow(servers: Servers) -> Iterator[Callable[[float], None]]:
    """Leaves room for so many more partitions."""

    def leave(partitions: float) -> None:
        for unit in servers.units:
            with unit.admin() as admin:
                used = int(admin.info("memory")["used_memory"])
                admin.config_set("maxmemory", used + int(partitions * PARTITION_BYTES / len(servers.units)))

    yield leave
    for unit in servers.units:
        with unit.admin() as admin:
            admin.config_set("maxmemory", UNIT_BYTES)


def big_group(job: Job, ticket: Ticket) -> GroupRows:
    num = job.shape.samples_per_prompt
    rows = [torch.full((ROW_BYTES // 4,), ticket.group, dtype=torch.int32) for _ in range(num)]
    columns = {"tokens": Jagged.from_rows(rows), "rewards": Jagged.scalars(torch.ones(num))}
    held = weight(job.admin.published())
    return GroupRows(ticket, columns, [held] * num, [held] * num)


def put(job: Job, tickets: list[Ticket]) -> list[Ticket]:
    """Those for whose groups there was no room, from the first one on."""
    for place, ticket in enumerate(tickets):
        try:
            assert all(job.rollout.put_groups([big_group(job, ticket)]))
        except StorageFull:
            return tickets[place:]
    return []


def put_log_probs(client: TransferQueueClient, batches: list[Batch]) -> None:
    """Half as large as the tokens; what was put is off the list."""
    while batches:
        rows = [torch.zeros(ROW_BYTES // 8) for _ in range(len(batches[-1].rows))]
        client.put(batches[-1], {"log_probs": Jagged.from_rows(rows)}, weight=weight(1))
        batches.pop()


def claim(client: TransferQueueClient, task: str, rollout: int, rows: int = 100) -> Batch:
    answer = client.claim(task, range(rollout, rollout + 1), rows, timeout=0)
    assert isinstance(answer, Batch), answer
    return answer


def make_room(job: Job) -> str | None:
    relief = job.admin.upkeep.relieve()
    job.admin.sweeper.sweep()
    job.prove()
    return None if relief is None else str(relief)


def test_retained_rows_go_first_then_the_newest_groups_then_a_put_fails_by_name(
    make_job: MakeJob, narrow: Callable[[float], None]
) -> None:
    job = make_job(batch=BATCH, staleness=1, timing=IMPATIENT)
    assert put(job, job.tickets(BATCH)) == []
    job.derive(0)
    job.train(0)
    job.publish(1)
    tickets = job.tickets(2 * BATCH, weight(1))
    assert [ticket.rollout_id for ticket in tickets] == [1] * BATCH + [2] * BATCH

    narrow(1.5)
    assert put(job, tickets[:BATCH]) == []
    refused = put(job, tickets[BATCH:])
    assert refused
    assert make_room(job) == f"{2 * BATCH} rows ({BATCH} groups) of train_0, kept for a restore, were dropped"
    assert put(job, refused) == []

    forward = job.client(Role.ACTOR_FWD)
    batches = [claim(forward, LOG_PROBS.name, 1, rows=4) for _ in range(BATCH // 2)]
    narrow(0.1)
    with pytest.raises(StorageFull, match=r"actor_fwd-0.0 puts log_probs of 4 rows of train_1"):
        put_log_probs(forward, batches)
    assert make_room(job) == f"{2 * BATCH} rows ({BATCH} groups) of train_2 were dropped and are generated again"
    put_log_probs(forward, batches)

    # The trainer's own partition is never dropped: what finds no room now is reported, and nothing waits for ever.
    narrow(0.05)
    assert make_room(job) is None
    reissued = job.tickets(BATCH, weight(1))
    assert [ticket.rollout_id for ticket in reissued] == [2] * BATCH
    with pytest.raises(
        StorageFull, match=r"has no room for \d+ bytes; rollout-0.0 puts 32 groups of train_2\. Raise transferQueue"
    ):
        job.rollout.put_groups([big_group(job, ticket) for ticket in reissued])

    # And the job goes on with what it has.
    job.derive(1, weight(1))
    job.train(1)
    job.publish(2)
    assert make_room(job) == f"{2 * BATCH} rows ({BATCH} groups) of train_1, kept for a restore, were dropped"
    assert put(job, reissued) == []


def test_a_shortage_keeps_back_what_the_trainer_does_not_wait_for(
    make_job: MakeJob, narrow: Callable[[float], None]
) -> None:
    job = make_job(batch=2, staleness=1, timing=IMPATIENT)
    first, second, third = job.tickets(3)
    narrow(0)
    job.admin.upkeep.probe()
    assert job.admin.upkeep.short_of_memory
    assert job.rollout.claim_tickets(weight(0), 1, 0) is Withheld.MEMORY
    job.rollout.return_tickets([second, third], killed=False)
    assert [(ticket.rollout_id, ticket.group) for ticket in job.tickets(5)] == [(0, 1)]
    assert job.rollout.claim_tickets(weight(0), 1, 0) is Withheld.MEMORY
    assert put(job, [first]) == [first]
    narrow(5)
    job.admin.upkeep.probe()
    assert not job.admin.upkeep.short_of_memory
    assert [(ticket.rollout_id, ticket.group) for ticket in job.tickets(5)] == [(1, 0), (1, 1)]


def test_a_shortage_is_known_also_where_nothing_more_may_be_issued(
    make_job: MakeJob, narrow: Callable[[float], None]
) -> None:
    """A full queue is when memory is short; what keeps tickets back then is not memory, but room must be made."""
    job = make_job(batch=2, staleness=1, timing=IMPATIENT)
    job.tickets(4)
    narrow(0)
    job.admin.upkeep.probe()
    assert job.rollout.claim_tickets(weight(0), 1, 0) is Withheld.STALENESS
    assert job.admin.stats().withheld == Withheld.STALENESS
    assert job.admin.upkeep.short_of_memory


def test_room_that_cannot_be_made_ends_no_lease(make_job: MakeJob) -> None:
    job = make_job(batch=2, staleness=1)
    job.put(job.tickets(4))
    job.derive(1)
    job.actor.claim_training(TRAIN.name, RolloutId(1), 0, 4, 0, 1, timeout=0)
    forward = job.client(Role.ACTOR_FWD)
    held = claim(forward, LOG_PROBS.name, 0)
    assert job.admin.upkeep.relieve() is None
    job.put_derived(forward, held, "log_probs")


def test_a_lease_on_rows_that_go_to_make_room_ends(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    job.step(0)
    # Published, and one of its derived fields is made again.
    with job.servers.control.admin() as admin:
        lines = admin.hgetall("p:0:chunks")
    line = next(line for line in lines.values() if b"|log_probs|" in line)
    chunk = parse_chunk(line)
    job.servers.units[chunk.unit].admin().delete(chunk.key)
    job.actor.calls.change("report_missed", 0, chunk.unit, waiting="a test")
    (lost,) = job.admin.upkeep.declare_missing()
    assert lost.loss.recomputed
    forward = job.client(Role.ACTOR_FWD)
    held = claim(forward, LOG_PROBS.name, 0)
    assert job.admin.upkeep.drop_retained() is not None
    with pytest.raises(LeaseLost):
        forward.put(held, {"log_probs": Jagged.from_rows([torch.zeros(2)] * len(held.rows))}, weight=weight(1))
    forward.release(held)
    assert isinstance(forward.claim(LOG_PROBS.name, range(1), 100, timeout=0), NotReady | Exhausted)
    job.admin.sweeper.sweep()
    job.prove()
