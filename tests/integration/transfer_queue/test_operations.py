"""What people do with a queue while it is at work: look at it, prove it, drain it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rljob_api.names import Role, RolloutId
from rljob_api.wire.queue import RowState
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.errors import TicketLost
from rljob_workers.transfer_queue.inspection import drain_blockers, retained_by_drain
from rljob_workers.transfer_queue.peeking import RowQuery
from rljob_workers.transfer_queue.types import Batch, Withheld
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.world import LOG_PROBS, TRAIN
from tests.weights import weight

MakeJob = Callable[..., Job]


def test_stats_count_rows_by_partition_task_and_state_and_state_who_has_what(make_job: MakeJob) -> None:
    job = make_job(batch=4, samples=2)
    job.put(job.tickets(3)[:2])
    job.admin.upkeep.probe()
    forward = job.client(Role.ACTOR_FWD)
    batch = forward.claim(LOG_PROBS.name, range(1), 3, timeout=0)
    assert isinstance(batch, Batch)
    stats = job.admin.inspection.stats("test")
    assert (stats.job, stats.epoch, stats.lineage, stats.published, stats.recorded) == ("test", 1, 1, 0, None)
    assert (stats.groups_issued, stats.groups_capacity, stats.withheld, stats.tickets_in_work) == (3, 8, None, 1)
    assert [(one.holder, one.tickets) for one in stats.holders] == [("rollout-0.0", 1)]
    partition = stats.partitions[0]
    assert partition.partition == "train_0"
    assert (partition.groups_put, partition.groups_issued, partition.groups_missing) == (2, 1, 1)
    rows = {row.task: (row.unready, row.ready, row.claimed, row.done) for row in partition.tasks}
    assert rows[LOG_PROBS.name] == (4, 1, 3, 0)
    assert rows[TRAIN.name] == (8, 0, 0, 0)
    assert [(lease.task, lease.partition, lease.holder, lease.rows) for lease in stats.leases] == [
        (LOG_PROBS.name, "train_0", "actor_fwd-0.0", 3)
    ]
    assert {task.task: (task.leases, task.rows_claimed, task.rows_ready) for task in stats.tasks}[LOG_PROBS.name] == (
        1,
        3,
        1,
    )
    assert [(unit.answers, unit.limit_bytes) for unit in stats.units] == [(True, 64 << 20)] * 2
    assert sum(unit.keys or 0 for unit in stats.units) == 2 + 2  # two chunks, two marks


def test_the_oldest_ticket_gets_older_until_it_is_done(make_job: MakeJob) -> None:
    job = make_job(batch=4, samples=2)

    def age() -> float:
        return job.admin.inspection.stats("test").oldest_ticket_seconds

    assert age() == 0
    tickets = job.tickets(1)
    deadline = time.monotonic() + 30
    while (before := age()) == 0:
        assert time.monotonic() < deadline
    tickets += job.tickets(1)
    assert age() >= before, "of a newer one it would be less"
    job.put(tickets)
    assert age() == 0


def test_the_oldest_lease_comes_first(make_job: MakeJob) -> None:
    job = make_job(batch=4, samples=2)
    job.put(job.tickets(4))
    holders = [job.client(Role.ACTOR_FWD, replica) for replica in range(2)]
    for client in reversed(holders):
        assert isinstance(client.claim(LOG_PROBS.name, range(1), 2, timeout=0), Batch)
        while not job.admin.inspection.stats("test").leases[-1].age_seconds:
            pass  # the control Redis counts milliseconds
    leases = job.admin.inspection.stats("test").leases
    assert [lease.holder for lease in leases] == ["actor_fwd-1.0", "actor_fwd-0.0"]


def test_a_large_partition_is_counted_in_parts(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_workers.transfer_queue.inspection.ROWS_AT_ONCE", 4)
    job = make_job(batch=5, samples=2)
    job.put(job.tickets(3))
    partition = job.admin.inspection.stats("test").partitions[0]
    assert (partition.groups_put, partition.groups_missing) == (3, 2)
    rows = {row.task: (row.unready, row.ready) for row in partition.tasks}
    assert rows[LOG_PROBS.name] == (4, 6)


def test_a_look_shows_rows_and_claims_none(make_job: MakeJob) -> None:
    job = make_job(batch=2, samples=2)
    job.put(job.tickets(1))
    peek = job.admin.peeking.rows(RowQuery([RolloutId(0)], limit=3, field="tokens", num_values=2))
    assert peek.more
    first, second, third = peek.rows
    assert (first.partition, first.row, first.group, first.group_state) == ("train_0", 0, 0, "put")
    assert first.lengths == {"tokens": 2, "rewards": 1}
    assert first.states[LOG_PROBS.name] is RowState.READY
    assert first.states[TRAIN.name] is RowState.UNREADY
    assert first.oldest is not None
    assert (first.oldest.lineage, first.oldest.version) == (1, 0)
    assert first.field is not None
    assert (first.field.dtype, first.field.length, first.field.shape, first.field.values) == ("int32", 2, [], [0, 1])
    assert second.field is not None
    assert (second.field.length, second.field.values) == (3, [0, 1])
    assert (third.group_state, third.lengths, third.oldest, third.field) == ("missing", {}, None, None)
    claimed = job.client(Role.ACTOR_FWD).claim(LOG_PROBS.name, range(1), 10, timeout=0)
    assert isinstance(claimed, Batch)
    assert len(claimed.rows) == 2


def test_values_of_every_kind_are_shown_as_json_can_state_them(make_job: MakeJob) -> None:
    job = make_job(batch=1, samples=3)
    kinds = {
        "tokens": torch.tensor([[True], [False], [True]]),
        "rewards": torch.tensor([[0.5, math.nan], [1.5, -math.inf], [-2.0, 3.0]], dtype=torch.bfloat16),
    }
    group = job.group(job.tickets(1)[0])
    job.rollout.put_groups([replace(group, columns={field: Jagged.scalars(rows) for field, rows in kinds.items()})])

    def shown(field: str, num_values: int) -> list[object]:
        rows = job.admin.peeking.rows(RowQuery([RolloutId(0)], field=field, num_values=num_values)).rows
        return [(row.field.dtype, row.field.shape, row.field.values) for row in rows if row.field is not None]

    assert shown("tokens", 4) == [("bool", [1], [True]), ("bool", [1], [False]), ("bool", [1], [True])]
    assert shown("rewards", 4) == [
        ("bfloat16", [2], [0.5, None]),
        ("bfloat16", [2], [1.5, None]),
        ("bfloat16", [2], [-2.0, 3.0]),
    ]
    assert shown("rewards", 1)[2] == ("bfloat16", [2], [-2.0])
    assert shown("rewards", 0)[0] == ("bfloat16", [2], [])


def test_a_look_finds_the_rows_of_a_task_in_a_state_over_partitions(make_job: MakeJob) -> None:
    job = make_job(batch=2, samples=2)
    job.put(job.tickets(4))
    batch = job.client(Role.ACTOR_FWD).claim(LOG_PROBS.name, range(1), 3, timeout=0)
    assert isinstance(batch, Batch)
    partitions = [RolloutId(0), RolloutId(1)]
    peek = job.admin.peeking.rows(RowQuery(partitions, task=LOG_PROBS.name, state=RowState.READY))
    assert [(row.partition, row.row) for row in peek.rows] == [("train_0", 3), *(("train_1", row) for row in range(4))]
    assert not peek.more


def test_bytes_that_are_gone_are_shown_as_gone(make_job: MakeJob) -> None:
    job = make_job(batch=2, samples=2)
    job.put(job.tickets(2))
    for index in range(2):
        job.servers.empty_unit(index)
    peek = job.admin.peeking.rows(RowQuery([RolloutId(0)], field="rewards"))
    assert {None if row.field is None else row.field.values is None for row in peek.rows} == {True}
    broken = job.admin.check()
    assert broken
    assert all("is not on storage unit" in line for line in broken)
    job.admin.upkeep.probe()
    for unit in range(2):
        job.admin.upkeep.declare_lost(unit)


def test_a_drained_queue_gives_no_ticket_until_that_is_taken_back(make_job: MakeJob) -> None:
    job = make_job(batch=2, samples=2)
    in_work = job.tickets(1)
    job.admin.withhold_tickets()
    since = job.admin.stats().draining_since
    job.admin.withhold_tickets()
    assert since is not None
    assert job.admin.stats().draining_since == since
    assert job.rollout.claim_tickets(weight(0), 1, 0) is Withheld.DRAINING
    assert job.put(in_work) == [True]
    job.admin.give_tickets()
    stats = job.admin.stats()
    assert stats.draining_since is None
    assert stats.drained_until is not None
    assert stats.drained_until >= since
    assert len(job.tickets(1)) == 1


def test_a_ticket_that_comes_back_or_is_rejected_waits_for_the_end_of_the_drain(make_job: MakeJob) -> None:
    job = make_job(batch=2, samples=2)
    returned, rejected = job.tickets(2)
    job.admin.withhold_tickets()
    job.rollout.return_tickets([returned], killed=False)
    with pytest.raises(TicketLost):
        job.rollout.redraw(rejected, "a filter said no")
    assert job.rollout.claim_tickets(weight(0), 2, 0) is Withheld.DRAINING
    job.admin.give_tickets()
    again = job.tickets(2)
    assert [(ticket.group, ticket.attempt) for ticket in again] == [(0, 0), (1, 1)]


def test_a_new_epoch_does_not_end_a_drain(make_job: MakeJob) -> None:
    job = make_job(batch=2, samples=2)
    job.admin.withhold_tickets()
    job.raise_epoch(2)
    job.rollout = job.client(Role.ROLLOUT)
    assert job.rollout.claim_tickets(weight(0, lineage=2), 1, 0) is Withheld.DRAINING


def test_a_queue_is_drained_when_nothing_can_move_any_more(make_job: MakeJob) -> None:
    job = make_job(batch=2, samples=2)
    tickets = job.tickets(3)
    job.admin.withhold_tickets()

    def left() -> list[str]:
        return drain_blockers(job.admin.inspection.stats("test"))

    assert left() == ["3 tickets are in work (rollout-0.0 3)"]
    job.put(tickets[:2])
    job.rollout.return_tickets(tickets[2:], killed=False)
    assert "4 rows of train_0 are ready for actor_log_probs, and nobody has claimed them" in left()
    forward = job.client(Role.ACTOR_FWD)
    batch = forward.claim(LOG_PROBS.name, range(1), 3, timeout=0)
    assert isinstance(batch, Batch)
    assert "3 rows are claimed for actor_log_probs (actor_fwd-0.0 3 of train_0)" in left()
    forward.release(batch)
    job.derive(0)
    assert left() == ["train_0 is whole and actor_train has consumed 0 of its 4 rows"]
    job.train(0)
    assert left() == ["train_0 is trained and its weights are not published yet"]
    job.publish(1)
    assert left() == []
    assert retained_by_drain(job.admin.inspection.stats("test")) == []


def test_rows_of_an_incomplete_partition_stay_in_a_drained_queue(make_job: MakeJob) -> None:
    job = make_job(batch=2, samples=2)
    job.put(job.tickets(1))
    job.admin.withhold_tickets()
    job.derive(0)
    stats = job.admin.inspection.stats("test")
    assert drain_blockers(stats) == []
    assert retained_by_drain(stats) == ["train_0: 1 groups are put, 1 are not; they stay until tickets are given again"]


def test_a_proof_of_a_queue_at_work_finds_nothing_broken(make_job: MakeJob) -> None:
    """Rows, partitions and bytes come and go between its parts."""
    job = make_job(batch=8, samples=4, rollouts=40)
    ended = threading.Event()
    proofs: list[list[str]] = []

    def prove() -> None:
        while not ended.is_set():
            proofs.append(job.admin.check())

    proving = threading.Thread(target=prove)
    proving.start()
    try:
        for rollout in range(40):
            job.step(rollout)
            job.record(rollout + 1)
            job.admin.sweeper.sweep()
    finally:
        ended.set()
        proving.join()
    assert len(proofs) > 1
    assert [line for proof in proofs for line in proof] == []
