from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from rljob_api.names import Role
from rljob_api.wire.observation import ServerState
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.admin import QueueAdmin
from rljob_workers.transfer_queue.control.connection import Subscription
from rljob_workers.transfer_queue.errors import LeaseLost
from rljob_workers.transfer_queue.row_format import FieldPlacement
from rljob_workers.transfer_queue.types import Batch, NotReady, QueueTiming
from rljob_workers.transfer_queue.units import GENERATION_KEY, StorageUnit
from rljob_workers.transfer_queue.upkeep import LostRows
from tests.integration.transfer_queue.control_keys import Control
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.world import ADVANTAGES, LOG_PROBS, REFERENCE, TRAIN
from tests.weights import weight

MakeJob = Callable[..., Job]
LONG_SECONDS = 60.0


@contextmanager
def only_unit(job: Job, index: int) -> Iterator[None]:
    """What clients made inside store goes to one unit."""
    other = job.servers.units[1 - index]
    other.kill()
    yield
    other.start()
    job.admin.upkeep.declare_lost(1 - index)


def lose(job: Job, index: int) -> LostRows:
    job.servers.empty_unit(index)
    assert job.admin.upkeep.probe() == [index]
    loss = job.admin.upkeep.declare_lost(index)
    assert job.admin.upkeep.probe() == []
    assert job.admin.upkeep.declare_lost(index) == LostRows()
    return loss


def test_groups_that_no_one_trains_are_generated_again_in_their_place(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    tickets = job.tickets(2)
    job.put(tickets)
    losses = [lose(job, index) for index in (0, 1)]
    assert sum(loss.reissued for loss in losses) == 2
    again = job.tickets(2)
    assert [(ticket.group, ticket.attempt, ticket.prompt_index) for ticket in again] == [(0, 0, 0), (1, 0, 1)]
    assert job.put(again) == [True, True]


def test_derived_fields_are_computed_again_with_what_depends_on_them(make_job: MakeJob) -> None:
    job = make_job(batch=1)
    with only_unit(job, 0):
        job.put(job.tickets(1))
    forward = job.client(Role.ACTOR_FWD)
    batch = forward.claim(LOG_PROBS.name, range(1), 2, timeout=0)
    assert isinstance(batch, Batch)
    forward.calls.units._shunned_until[0] = float("inf")
    job.put_derived(forward, batch, "log_probs")
    derived_elsewhere = job.client(Role.ADVANTAGES)
    derived_elsewhere.calls.units._shunned_until[0] = float("inf")
    group = derived_elsewhere.claim(ADVANTAGES.name, range(1), 2, timeout=0)
    assert isinstance(group, Batch)
    with only_unit(job, 0):
        pass
    assert job.admin.check() == []
    assert job.admin.stats().rows_ready["actor_log_probs"] == 2
    with pytest.raises(LeaseLost):
        job.put_derived(derived_elsewhere, group, "advantages")
    job.derive(0)
    job.train(0)
    job.publish(1)


def test_a_claimer_of_rows_learns_when_a_field_that_they_lost_is_there_again(make_job: MakeJob) -> None:
    job = make_job(batch=1)
    with only_unit(job, 0):
        job.put(job.tickets(1))
    for task, role in ((LOG_PROBS, Role.ACTOR_FWD), (REFERENCE, Role.REFERENCE), (ADVANTAGES, Role.ADVANTAGES)):
        client = job.client(role)
        client.calls.units._shunned_until[0] = float("inf")
        batch = client.claim(task.name, range(1), 2, timeout=0)
        assert isinstance(batch, Batch)
        job.put_derived(client, batch, task.writes[0])
    assert isinstance(job.claim_training(0), Batch)
    assert lose(job, 1).recomputed == 1
    assert isinstance(job.claim_training(0), NotReady)
    notices = Subscription(job.servers.control.url)
    assert notices.listen(TRAIN.name)
    job.derive(0)
    notices.wait(LONG_SECONDS)
    assert notices.noticed(TRAIN.name)
    notices.close()
    assert isinstance(job.claim_training(0), Batch)


def test_rows_in_training_need_a_global_restart_and_go_with_it(make_job: MakeJob) -> None:
    job = make_job(batch=1)
    job.put(job.tickets(1))
    job.derive(0)
    assert isinstance(job.claim_training(0), Batch)
    losses = [lose(job, index) for index in (0, 1)]
    assert sum(loss.needs_global_restart for loss in losses) >= 1
    point = job.raise_epoch(2)
    assert (point.kept_groups, point.dropped_groups) == (0, 1)


def test_a_published_group_is_absent_until_a_restore_generates_it_again(make_job: MakeJob) -> None:
    job = make_job(batch=1)
    job.step(0)
    losses = [lose(job, index) for index in (0, 1)]
    assert sum(loss.absent for loss in losses) == 1
    job.step(1)
    job.restore = job.raise_epoch(2)
    job.rollout, job.actor = job.client(Role.ROLLOUT), job.client(Role.ACTOR)
    assert job.restore.version == 0
    assert [(ticket.rollout_id, ticket.prompt_index) for ticket in job.tickets(1)] == [(0, 0)]


def test_a_claim_whose_bytes_are_gone_states_it_and_gives_the_rows_back(make_job: MakeJob) -> None:
    job = make_job()
    job.put(job.tickets(2))
    for index in (0, 1):
        job.servers.empty_unit(index)
    client = job.client(Role.ACTOR_FWD)
    answer = client.claim(LOG_PROBS.name, range(1), 10, timeout=0)
    assert isinstance(answer, NotReady)
    assert "no longer has" in answer.waiting_for
    assert job.admin.stats().rows_ready["actor_log_probs"] == 4
    for index in (0, 1):
        job.admin.upkeep.declare_lost(index)


def test_a_claim_waits_for_a_unit_that_hangs_in_turns_and_gives_the_rows_back(make_job: MakeJob) -> None:
    job = make_job(timing=QueueTiming())
    job.put(job.tickets(2))
    client = job.client(Role.ACTOR_FWD)
    hung = [unit._process.pid for unit in job.servers.units if unit._process is not None]
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    try:
        answer = client.claim(LOG_PROBS.name, range(1), 10, timeout=0)
        assert isinstance(answer, NotReady)
        assert "storage unit" in answer.waiting_for
        assert "has not answered" in answer.waiting_for
        assert isinstance(job.claim_training(0), NotReady)
        assert job.admin.stats().rows_ready["actor_log_probs"] == 4
    finally:
        for pid in hung:
            os.kill(pid, signal.SIGCONT)
    batch = client.claim(LOG_PROBS.name, range(1), 10, timeout=0)
    assert isinstance(batch, Batch)
    assert len(batch.rows) == 4


def test_a_put_whose_unit_came_back_empty_stores_its_bytes_again(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    first, second = job.tickets(2)
    job.put([first])
    store, struck = job.rollout.calls.units.store, list[int]()

    def store_and_lose(columns: Mapping[str, Jagged], *, deadline: float, waiting: str) -> dict[str, FieldPlacement]:
        stored = store(columns, deadline=deadline, waiting=waiting)
        if not struck:
            struck.extend((0, 1))
            for index in struck:
                lose(job, index)
        return stored

    monkeypatch.setattr(job.rollout.calls.units, "store", store_and_lose)
    assert job.put([second]) == [True]
    assert struck
    assert job.put(job.tickets(1)) == [True]


def test_a_loss_that_was_not_reported_is_found_again(make_job: MakeJob) -> None:
    job = make_job(batch=1)
    with only_unit(job, 0):
        job.put(job.tickets(1))
        job.derive(0, weight(0))
        job.train(0)
    job.servers.empty_unit(0)

    def die(loss: LostRows) -> None:
        assert loss.needs_global_restart == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.admin.upkeep.declare_lost(0, die)
    assert job.admin.upkeep.declare_lost(0).needs_global_restart == 1
    assert job.admin.upkeep.declare_lost(0) == LostRows()
    job.raise_epoch(2)


def later_admin(job: Job) -> QueueAdmin:
    admin = QueueAdmin(job.servers.endpoints, job.shape, timing=job.admin_timing)
    assert admin.open_server(0) is ServerState.OPEN
    return admin


def use_all_units(job: Job) -> None:
    """Each ticket's bytes go to the next unit."""
    assert [job.put([ticket]) for ticket in job.tickets(4)] == [[True]] * 4


def test_a_unit_with_an_older_mark_than_the_queue_knows_is_lost_once(make_job: MakeJob) -> None:
    job = make_job(batch=4)
    job.put(job.tickets(1))
    with job.servers.control.admin() as admin:
        admin.hset("q:units", mapping={"0": 6, "1": 6})
    for unit in job.servers.units:
        with unit.admin() as admin:
            admin.set(GENERATION_KEY, 5)
    assert job.admin.upkeep.probe() == [0, 1]
    losses = [job.admin.upkeep.declare_lost(index) for index in (0, 1)]
    assert sum(loss.reissued for loss in losses) == 1
    assert job.admin.upkeep.probe() == []
    use_all_units(job)


def test_a_replaced_admins_late_mark_does_not_lower_that_of_its_successor(make_job: MakeJob) -> None:
    job = make_job(batch=4)
    earlier = job.admin
    job.servers.empty_unit(0)

    def replace(_: LostRows) -> None:
        job.admin = later_admin(job)
        job.admin.upkeep.declare_lost(0)

    earlier.upkeep.declare_lost(0, replace)
    earlier.close()
    assert job.admin.upkeep.probe() == []
    use_all_units(job)


def test_a_replaced_admins_mark_gives_way_to_that_of_its_successor(make_job: MakeJob) -> None:
    job = make_job(batch=4)
    job.servers.empty_unit(0)
    unit = StorageUnit(0, job.servers.units[0].url)

    def mark_late(_: LostRows) -> None:
        known = Control(job.servers.control.admin(), job.shape).units[0]
        assert unit.raise_mark(known - 1, deadline=float("inf")) == known - 1

    job.admin.upkeep.declare_lost(0, mark_late)
    unit.close()
    assert job.admin.upkeep.probe() == []
    use_all_units(job)


def test_room_is_made_from_rows_retained_for_a_restore_then_from_the_newest_groups(make_job: MakeJob) -> None:
    job = make_job(batch=1, staleness=1)
    job.step(0)
    job.put(job.tickets(2, weight(1)), weight(1))
    assert str(job.admin.upkeep.relieve()) == "2 rows (1 groups) of train_0, kept for a restore, were dropped"
    assert str(job.admin.upkeep.relieve()) == "2 rows (1 groups) of train_2 were dropped and are generated again"
    # train_1 is what the trainer waits for: dropping it would make no progress.
    assert job.admin.upkeep.relieve() is None
    assert [ticket.rollout_id for ticket in job.tickets(5, weight(1))] == [2]
