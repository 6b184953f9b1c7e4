"""A job that is started again with a storage unit less, or a role more or less: what is unreadable is made again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rljob_api.names import Epoch, Role
from rljob_api.wire.observation import ServerState
from rljob_workers.transfer_queue.admin import QueueAdmin
from rljob_workers.transfer_queue.admin_calls import Named
from rljob_workers.transfer_queue.errors import Fenced, Incomplete
from rljob_workers.transfer_queue.types import Batch, QueueShape, Task
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.world import ADVANTAGES, GENERATED, LOG_PROBS, REFERENCE, TRAIN, make_shape
from tests.weights import weight

MakeJob = Callable[..., Job]


def test_rows_of_a_unit_that_is_no_part_of_the_job_any_more_are_generated_again(make_job: MakeJob) -> None:
    job = make_job(batch=4)
    for ticket in job.tickets(4):
        job.put([ticket])
    endpoints = job.servers.endpoints
    fewer = endpoints.model_copy(update={"storage_units": endpoints.storage_units[:1]})
    admin = QueueAdmin(fewer, job.shape, timing=job.admin_timing)
    assert admin.open_server(0) is ServerState.OPEN
    restore = admin.raise_epoch(Epoch(2), "d2", "resumed with a unit less", None)
    assert restore.kept_groups == 2
    admin.sweeper.sweep()
    assert admin.check() == []
    named = [line for _, line in admin.sweeper.named(Named.ALL)]
    assert all(line.startswith(b"0|") for line in named)
    admin.close()


def without_reference() -> QueueShape:
    shape = make_shape(batch=2)
    train = replace(TRAIN, needs=tuple(field for field in TRAIN.needs if field not in REFERENCE.writes))
    return replace(shape, tasks=tuple(train if task == TRAIN else task for task in shape.tasks if task != REFERENCE))


MORE = replace(make_shape(batch=2), generated_fields=(*GENERATED, "extra"))


def unserved(job: Job, task: Task, role: Role) -> int:
    """Rows that are ready for a forward task."""
    batch = job.client(role).claim(task.name, range(1), 100, timeout=0)
    return len(batch.rows) if isinstance(batch, Batch) else 0


@pytest.mark.parametrize("comes", [True, False], ids=["a reference comes", "a reference goes"])
def test_rows_go_on_where_other_roles_derive_fields_of_them(make_job: MakeJob, comes: bool) -> None:
    job = make_job(batch=2)
    before, after = make_shape(batch=2), without_reference()
    if comes:
        before, after = after, before
    job.reopen(before, 2)
    first, second = job.tickets(2)
    assert job.put([first]) == [True]
    job.derive(0)
    assert job.put([second]) == [True]
    held = job.tickets(1)
    restore = job.reopen(after, 3)
    what = "ref_log_probs to be computed" if comes else "ref_log_probs of before dropped"
    assert str(job.admin.adopted_layout) == f"The table of columns changed ({what}): 2 groups that were put go on."
    assert (restore.kept_groups, restore.dropped_groups) == (2, 0)
    assert held[0].prompt_index == job.tickets(1)[0].prompt_index
    if comes:
        assert unserved(job, REFERENCE, Role.REFERENCE) == 4
    assert (unserved(job, LOG_PROBS, Role.ACTOR_FWD), unserved(job, ADVANTAGES, Role.ADVANTAGES)) == (2, 0)


def test_a_critic_comes_and_goes_with_what_was_put(make_job: MakeJob) -> None:
    """In the middle of a rollout: what the actor had consumed is consumed again, by both."""
    job = make_job(batch=2)
    job.step(0)
    job.record(1)
    job.put(job.tickets(2, weight(1)), weight(1))
    job.derive(1, weight(1))
    job.train(1)
    restore = job.reopen(make_shape(batch=2, critic=1), 2)
    assert "other tasks read the same fields" in str(job.admin.adopted_layout)
    assert (restore.version, restore.kept_groups) == (1, 2)
    job.train(1)
    job.publish(2, lineage=2)
    with pytest.raises(Incomplete, match="train_1: 0 of 4 rows are consumed by critic_train"):
        job.record(2, lineage=2)
    assert job.reopen(make_shape(batch=2), 3).kept_groups == 2
    job.train(1)
    job.publish(2, lineage=3)
    job.record(2, lineage=3)


def test_fields_of_a_task_that_reads_others_now_are_computed_again(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(2))
    job.derive(0)
    other = replace(LOG_PROBS, needs=("tokens", "rewards"))
    tasks = tuple(other if task == LOG_PROBS else task for task in job.shape.tasks)
    assert job.reopen(replace(job.shape, tasks=tasks), 2).kept_groups == 2
    job.prove()
    left = [(LOG_PROBS, Role.ACTOR_FWD), (REFERENCE, Role.REFERENCE), (ADVANTAGES, Role.ADVANTAGES)]
    assert [unserved(job, task, role) for task, role in left] == [4, 0, 0]


def test_what_a_generated_column_misses_is_generated_again_and_nothing_is_trained_twice(make_job: MakeJob) -> None:
    """An upgrade, in the middle of the second rollout, then back, and the upgrade again."""
    job = make_job(batch=2)
    job.step(0)
    job.record(1)
    job.put(job.tickets(1, weight(1)), weight(1))
    held = job.tickets(1, weight(1))
    for epoch, shape, how in ((2, MORE, "added"), (3, make_shape(batch=2), "removed"), (4, MORE, "added")):
        restore = job.reopen(shape, epoch)
        assert str(job.admin.adopted_layout) == (
            f"The table of columns changed (generated fields {how}: extra): 1 groups that were put since the checkpoint"
            " cannot be used, and are generated again from the same prompts."
        )
        assert (restore.version, restore.kept_groups) == (1, 0)
        again = job.tickets(2, weight(1))
        assert [(ticket.rollout_id, ticket.group, ticket.prompt_index) for ticket in again] == [(1, 0, 2), (1, 1, 3)]
        assert job.put(again[:1], weight(1)) == [True]
        job.prove()
    assert held[0].prompt_index == 3


def test_rows_of_a_release_that_stored_no_table_go_on_from_the_checkpoint(make_job: MakeJob) -> None:
    """As 0.2.0 leaves them: a digest of its own, and under a later release's table if it was rolled back to."""
    job = make_job(batch=2)
    job.put(job.tickets(1))
    with job.servers.control.admin() as admin:
        admin.hset("q:meta", "layout", "0123456789ab")
    job.reopen(MORE, 2)
    adopted = job.admin.adopted_layout
    assert adopted is not None
    assert (adopted.groups, adopted.what) == (1, "generated fields missing in them: extra")
    assert [ticket.prompt_index for ticket in job.tickets(2)] == [0, 1]


def test_another_layout_is_reported_until_that_is_done(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    assert job.admin.adopted_layout is None
    job.put(job.tickets(1))
    job.reopen(MORE, 2)
    adopted = job.admin.adopted_layout
    job.reopen(MORE, 3)
    assert adopted == job.admin.adopted_layout
    assert adopted is not None
    job.admin.forget_adopted_layout(adopted)
    job.reopen(MORE, 4)
    assert job.admin.adopted_layout is None


def test_ranks_that_knew_another_layout_change_nothing_any_more(make_job: MakeJob) -> None:
    """Not even before the next epoch is opened."""
    job = make_job(batch=2)
    tickets = job.tickets(2)
    job.put(tickets[:1])
    client = job.client(Role.ACTOR_FWD)
    batch = client.claim(LOG_PROBS.name, range(1), 100, timeout=0)
    assert isinstance(batch, Batch)
    job.admin.close()
    admin = QueueAdmin(job.servers.endpoints, without_reference(), timing=job.admin_timing)
    assert admin.open_server(0) is ServerState.OPEN
    with pytest.raises(Fenced):
        job.put(tickets[1:])
    with pytest.raises(Fenced):
        job.put_derived(client, batch, "log_probs")
    assert admin.check() == []
    admin.close()
    assert job.reopen(without_reference(), 2).kept_groups == 1
