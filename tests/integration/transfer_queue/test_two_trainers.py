"""Two training tasks: the actor publishes alone; capacity, records and what a loss means go by the critic, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson
import pytest

from rljob_api.names import Role, RolloutId
from rljob_workers.transfer_queue.control.connection import Subscription
from rljob_workers.transfer_queue.errors import Incomplete
from rljob_workers.transfer_queue.inspection import drain_blockers
from rljob_workers.transfer_queue.types import Batch, Exhausted, NotReady, Task, Withheld
from rljob_workers.transfer_queue.upkeep import LostRows
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.test_lost_rows import lose, only_unit
from tests.integration.transfer_queue.world import ADVANTAGES, CRITIC, LOG_PROBS, REFERENCE, TRAIN
from tests.weights import weight

MakeJob = Callable[..., Job]
LONG_SECONDS = 60.0
RESTART, RECOMPUTED, ABSENT, REISSUED = (
    LostRows(needs_global_restart=1),
    LostRows(recomputed=1),
    LostRows(absent=1),
    LostRows(reissued=1),
)


def begin_epoch(job: Job, epoch: int) -> None:
    job.restore = job.raise_epoch(epoch)
    job.rollout, job.actor = job.client(Role.ROLLOUT), job.client(Role.ACTOR)


def consumed(job: Job, task: Task) -> dict[int, int]:
    """Partition -> rows that the task has consumed."""
    partitions = job.admin.inspection.stats("test").partitions
    return {one.rollout_id: next(rows.done for rows in one.tasks if rows.task == task.name) for one in partitions}


# --- publishing, capacity, records -----------------------------------------------------------------------------------


def test_the_actor_publishes_while_the_critic_is_behind(make_job: MakeJob) -> None:
    job = make_job(critic=1)
    job.put(job.tickets(2))
    job.derive(0)
    job.train(0, CRITIC)
    with pytest.raises(Incomplete, match="train_0: 0 of 4 rows are consumed by actor_train"):
        job.publish(1)
    job.train(0)
    job.publish(1)
    job.step(1)  # without the critic
    job.publish(2)
    assert job.admin.published() == 2
    assert (consumed(job, TRAIN), consumed(job, CRITIC)) == ({0: 4, 1: 4}, {0: 4, 1: 0})


def test_groups_are_issued_as_far_as_the_last_training_task_has_come(make_job: MakeJob) -> None:
    job = make_job(critic=1, batch=1)
    job.step(0)
    assert [ticket.rollout_id for ticket in job.tickets(5, weight(1))] == [1]
    assert job.rollout.claim_tickets(weight(1), 5, 0) is Withheld.CAPACITY
    stats = job.admin.stats()
    assert (stats.groups_issued, stats.groups_capacity, stats.withheld) == (2, 2, "Capacity")
    notices = Subscription(job.servers.control.url)
    assert notices.listen("tickets")
    job.train(0, CRITIC)
    notices.wait(LONG_SECONDS)
    assert notices.noticed("tickets")
    notices.close()
    assert job.admin.stats().groups_issued == 1
    assert [ticket.rollout_id for ticket in job.tickets(5, weight(1))] == [2]


def test_a_critic_that_is_ahead_frees_nothing_before_the_actor_publishes(make_job: MakeJob) -> None:
    job = make_job(critic=1, batch=1)
    job.put(job.tickets(2))
    job.derive(0)
    job.derive(1)
    for rollout in (0, 1):
        job.train(rollout, CRITIC)
    assert job.admin.stats().groups_issued == 2
    job.train(0)
    job.publish(1)
    assert job.admin.stats().groups_issued == 1


def test_capacity_is_found_behind_any_number_of_partitions_that_are_not_recorded(make_job: MakeJob) -> None:
    """Whichever the critic has left out."""
    job = make_job(critic=1, batch=1, staleness=7, rollouts=9)
    for rollout in range(8):
        job.step(rollout)
    order = [3, 0, 1, 6, 2, 5, 4, 7]
    for done, rollout in enumerate(order, 1):
        job.train(rollout, CRITIC)
        first = next(r for r in range(9) if r not in order[:done])
        assert job.admin.stats().groups_issued == 8 - first
        if first < 8:
            with pytest.raises(Incomplete, match=f"version 8 cannot be recorded: train_{first}: 0 of 2 rows"):
                job.record(8)
        job.check()


def test_a_version_is_recorded_once_both_have_consumed_what_is_before_it(make_job: MakeJob) -> None:
    job = make_job(critic=1)
    job.publish(0)
    job.record(0)
    job.step(0)
    with pytest.raises(
        Incomplete, match="version 1 cannot be recorded: train_0: 0 of 4 rows are consumed by critic_train"
    ):
        job.record(1)
    assert job.admin.sweeper.sweep().partitions == 0
    batch = job.actor.claim_training(CRITIC.name, RolloutId(0), 0, 2, 0, 1, timeout=0)
    assert isinstance(batch, Batch)
    for _ in range(2):
        job.actor.commit_training(CRITIC.name, RolloutId(0), [0])
    with pytest.raises(Incomplete, match="train_0: 2 of 4 rows are consumed by critic_train"):
        job.record(1)
    assert isinstance(job.actor.claim_training(CRITIC.name, RolloutId(0), 1, 2, 0, 1, timeout=0), Batch)
    for _ in range(2):
        job.actor.commit_training(CRITIC.name, RolloutId(0), [1])
        job.record(1)
    assert job.admin.sweeper.sweep().partitions == 1


def test_each_task_is_through_with_a_partition_by_itself(make_job: MakeJob) -> None:
    job = make_job(critic=1)
    job.step(0)
    assert isinstance(job.actor.claim_training(TRAIN.name, RolloutId(0), 1, 4, 0, 1, timeout=0), Exhausted)
    assert isinstance(job.claim_training(0, CRITIC), Batch)
    job.train(0, CRITIC)
    assert isinstance(job.actor.claim_training(CRITIC.name, RolloutId(0), 1, 4, 0, 1, timeout=0), Exhausted)
    job.record(1)
    for task in (TRAIN, CRITIC):
        assert isinstance(job.actor.claim_training(task.name, RolloutId(0), 1, 4, 0, 1, timeout=0), Exhausted)


# --- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [TRAIN, CRITIC], ids=lambda task: task.name)
def test_both_go_on_from_the_record_whichever_was_ahead(make_job: MakeJob, ahead: Task) -> None:
    job = make_job(critic=1, staleness=2)
    job.step(0)
    job.train(0, CRITIC)
    job.record(1)
    job.put(job.tickets(4, weight(1)), weight(1))
    job.derive(1, weight(1))
    job.train(1, ahead)
    if ahead is TRAIN:
        job.publish(2)
    begin_epoch(job, 2)
    assert (job.restore.version, job.restore.kept_groups, job.admin.published()) == (1, 4, 1)
    assert consumed(job, TRAIN) == consumed(job, CRITIC) == {1: 0, 2: 0}
    assert job.admin.stats().groups_issued == 4
    for task in (CRITIC, TRAIN):
        job.train(1, task)
    job.publish(2, lineage=2)
    job.record(2, lineage=2)


def test_the_ticket_table_has_the_draws_that_some_training_task_may_need_again(make_job: MakeJob) -> None:
    job = make_job(critic=1)
    job.step(0)
    assert [draw[0] for draw in orjson.loads(job.actor.ticket_table())["draws"]] == [0, 1]
    job.train(0, CRITIC)
    assert orjson.loads(job.actor.ticket_table())["draws"] == []


# --- losses ----------------------------------------------------------------------------------------------------------


def make_rows(job: Job, elsewhere: Sequence[Task]) -> None:
    """The one group of train_0 on unit 0, what the tasks of `elsewhere` make of it on unit 1."""
    with only_unit(job, 0):
        job.put(job.tickets(1))
    tasks = ((LOG_PROBS, Role.ACTOR_FWD), (REFERENCE, Role.REFERENCE), (ADVANTAGES, Role.ADVANTAGES))
    for task, role in tasks:
        client = job.client(role)
        client.calls.units._shunned_until[0 if task in elsewhere else 1] = float("inf")
        batch = client.claim(task.name, range(1), 2, timeout=0)
        assert isinstance(batch, Batch)
        job.put_derived(client, batch, task.writes[0])


def claim_only(job: Job, task: Task) -> None:
    assert isinstance(job.claim_training(0, task), Batch)


def train(job: Job, task: Task) -> None:
    job.train(0, task)


def publish(job: Job, _task: Task) -> None:
    job.publish(1)


Step = tuple[Callable[[Job, Task], None], Task]
ACTOR_CLAIMS, ACTOR_TRAINS, PUBLISHES = (claim_only, TRAIN), (train, TRAIN), (publish, TRAIN)
CRITIC_CLAIMS, CRITIC_TRAINS = (claim_only, CRITIC), (train, CRITIC)


@pytest.mark.parametrize(
    ("steps", "generated", "derived"),
    [
        pytest.param([], REISSUED, RECOMPUTED, id="no task has them"),
        pytest.param([ACTOR_CLAIMS], RESTART, RESTART, id="the actor has claimed them"),
        pytest.param([ACTOR_TRAINS], RESTART, RESTART, id="the actor has consumed them"),
        pytest.param([ACTOR_TRAINS, PUBLISHES], RESTART, RESTART, id="it has published"),
        pytest.param([ACTOR_TRAINS, PUBLISHES, CRITIC_CLAIMS], RESTART, RESTART, id="and the critic has claimed them"),
        pytest.param([ACTOR_TRAINS, CRITIC_TRAINS], RESTART, RECOMPUTED, id="both have consumed them"),
        pytest.param([ACTOR_TRAINS, CRITIC_TRAINS, PUBLISHES], ABSENT, RECOMPUTED, id="and it is published"),
        pytest.param([CRITIC_CLAIMS], RESTART, RECOMPUTED, id="the critic alone has claimed them"),
        pytest.param([CRITIC_TRAINS], RESTART, RECOMPUTED, id="the critic alone has consumed them"),
        pytest.param(
            [CRITIC_TRAINS, ACTOR_CLAIMS], RESTART, RECOMPUTED, id="the critic has consumed, the actor claimed"
        ),
    ],
)
@pytest.mark.parametrize("unit", [0, 1], ids=["generated", "derived"])
def test_a_loss_means_what_the_trainers_still_need(
    make_job: MakeJob, unit: int, steps: Sequence[Step], generated: LostRows, derived: LostRows
) -> None:
    job = make_job(critic=1, batch=1)
    make_rows(job, elsewhere=(LOG_PROBS, REFERENCE, ADVANTAGES))
    for step, task in steps:
        step(job, task)
    expected = (generated, derived)[unit]
    assert lose(job, unit) == expected
    job.check()
    if expected == RECOMPUTED:
        job.derive(0)
    if expected in (RECOMPUTED, ABSENT):
        finish(job)
    begin_epoch(job, 2)
    assert job.restore.kept_groups == unit
    assert consumed(job, TRAIN) == consumed(job, CRITIC) == {0: 0}


def finish(job: Job) -> None:
    """What is not consumed yet can be, and the version is recorded."""
    done = {task: consumed(job, task)[0] == job.shape.rows_per_partition for task in (TRAIN, CRITIC)}
    for task, is_done in done.items():
        if not is_done:
            job.train(0, task)
    if job.admin.published() == 0:
        job.publish(1)
    assert job.admin.stats().groups_issued == 0


def test_a_lost_field_that_only_the_actor_read_restarts_nothing(make_job: MakeJob) -> None:
    job = make_job(critic=1, batch=1)
    make_rows(job, elsewhere=(REFERENCE,))
    job.train(0)
    job.publish(1)
    assert lose(job, 1) == RECOMPUTED
    job.train(0, CRITIC)
    job.record(1)


def test_rows_that_the_critic_still_needs_are_not_dropped_for_room(make_job: MakeJob) -> None:
    job = make_job(critic=1, batch=1)
    job.step(0)
    assert job.admin.upkeep.relieve() is None
    job.train(0, CRITIC)
    assert str(job.admin.upkeep.relieve()) == "2 rows (1 groups) of train_0, kept for a restore, were dropped"
    assert job.admin.upkeep.relieve() is None
    job.record(1)


# --- what is said of it ----------------------------------------------------------------------------------------------


def test_a_drain_waits_for_what_the_critic_is_behind_with(make_job: MakeJob) -> None:
    job = make_job(critic=1, batch=1)
    job.step(0)
    stats = job.admin.inspection.stats("test")
    assert {task.task: task.publishes for task in stats.tasks if task.kind == "Training"} == {
        TRAIN.name: True,
        CRITIC.name: False,
    }
    assert drain_blockers(stats) == ["train_0 is published and critic_train has consumed 0 of its 2 rows"]
    job.train(0, CRITIC)
    assert drain_blockers(job.admin.inspection.stats("test")) == []


def test_a_critic_that_waits_names_what_it_waits_for(make_job: MakeJob) -> None:
    job = make_job(critic=1)
    job.put(job.tickets(1))
    answer = job.claim_training(0, CRITIC)
    assert isinstance(answer, NotReady)
    assert answer.waiting_for == (
        "batch 0 (4 rows) of train_0 for critic_train; missing: tokens (2 rows), rewards (2 rows), advantages (4 rows)"
    )
