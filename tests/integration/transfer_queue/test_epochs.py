from __future__ import annotations

from collections.abc import Callable

import pytest

from rljob_api.names import Epoch, Role
from rljob_workers.transfer_queue.errors import DeadWeight, Fenced, WrongEpoch
from rljob_workers.transfer_queue.types import Batch, Withheld
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.world import LOG_PROBS, make_incarnation
from tests.weights import weight

MakeJob = Callable[..., Job]


def begin_epoch(job: Job, epoch: int) -> None:
    job.restore = job.raise_epoch(epoch)
    job.rollout, job.actor = job.client(Role.ROLLOUT), job.client(Role.ACTOR)


def ready(job: Job) -> dict[str, int]:
    return job.admin.stats().rows_ready


def test_an_epoch_only_rises_and_the_same_decision_gets_the_same_answer(make_job: MakeJob) -> None:
    job = make_job()
    point = job.raise_epoch(3)
    assert (point.epoch, point.lineage, point.version, point.folder) == (3, 3, 0, None)
    assert job.raise_epoch(3) == point
    with pytest.raises(WrongEpoch, match=r"epoch 3 is not above the current epoch 3 \(decision d3\)"):
        job.admin.raise_epoch(Epoch(3), "another", "a test", None)
    with pytest.raises(WrongEpoch):
        job.raise_epoch(2)


def test_everybody_of_the_old_epoch_is_fenced(make_job: MakeJob) -> None:
    job = make_job()
    tickets, incarnation = job.tickets(1), job.incarnations[job.actor]
    job.raise_epoch(2)
    with pytest.raises(Fenced, match="epoch 1 is over; the current epoch is 2"):
        job.put(tickets)
    with pytest.raises(Fenced):
        job.admin.begin_incarnation(make_incarnation(Role.ACTOR, 1))
    with pytest.raises(Fenced):
        job.admin.publish(incarnation, weight(0), "late")
    with pytest.raises(Fenced):
        job.admin.record(incarnation, weight(0), "0", {}, "late")


def test_groups_of_recorded_weights_are_retained_and_trained_again(make_job: MakeJob) -> None:
    job = make_job(staleness=1)
    job.put(job.tickets(4))
    job.derive(0)
    job.train(0)
    begin_epoch(job, 2)
    assert (job.restore.kept_groups, job.restore.dropped_groups) == (4, 0)
    assert ready(job) == {"actor_log_probs": 4, "ref_log_probs": 4, "advantages": 0, "actor_train": 4}
    job.train(0)
    job.publish(1, lineage=2)


def test_what_unrecorded_weights_made_goes_and_its_prompts_come_back_in_order(make_job: MakeJob) -> None:
    job = make_job(staleness=1, batch=2)
    job.step(0)
    made_by_lost = job.tickets(4, weight(1))
    assert [ticket.prompt_index for ticket in made_by_lost] == [2, 3, 4, 5]
    job.put(made_by_lost[:3], weight(1))
    begin_epoch(job, 2)
    assert (job.restore.version, job.restore.kept_groups, job.restore.dropped_groups) == (0, 2, 3)
    again = job.tickets(2)
    assert [(ticket.rollout_id, ticket.group, ticket.prompt_index) for ticket in again] == [(1, 0, 2), (1, 1, 3)]


def test_retained_rows_lose_what_dead_weights_derived_and_what_was_derived_from_that(make_job: MakeJob) -> None:
    job = make_job(staleness=1)
    job.put(job.tickets(4))
    first = job.restore
    job.derive(0)
    job.train(0)
    job.publish(1)
    job.derive(1, weight(1))
    assert ready(job)["actor_train"] == 4
    begin_epoch(job, 2)
    assert (first.version, job.restore.version, job.restore.kept_groups) == (0, 0, 4)
    # train_1: log-probs were under the lost version 1; advantages came from them; reference log-probs too, here.
    assert ready(job) == {"actor_log_probs": 4, "ref_log_probs": 4, "advantages": 0, "actor_train": 4}


def test_a_restore_begins_at_the_recorded_version(make_job: MakeJob) -> None:
    job = make_job(staleness=0, batch=1)
    job.step(0)
    job.record(1)
    job.step(1)
    begin_epoch(job, 2)
    assert (job.restore.version, job.restore.folder, job.admin.published()) == (1, "1", 1)
    job.admin.publish(job.incarnations[job.actor], weight(1, lineage=2), "restored")
    # The group of train_1 was made by the recorded version 1 and stands.
    assert job.restore.kept_groups == 1
    job.train(1)
    job.publish(2, lineage=2)
    assert [ticket.rollout_id for ticket in job.tickets(5, weight(2, lineage=2))] == [2]


def test_a_version_trained_again_is_not_the_lost_one(make_job: MakeJob) -> None:
    job = make_job(staleness=0, batch=1)
    job.step(0)
    begin_epoch(job, 2)
    with pytest.raises(DeadWeight, match="lineage 1 is not the current one"):
        job.publish(1, lineage=1)
    job.train(0)
    job.publish(1, lineage=2)
    assert job.rollout.claim_tickets(weight(1), 1, 0) is Withheld.DEAD_WEIGHTS
    with pytest.raises(DeadWeight, match="v1@1 is dead"):
        job.record(1, lineage=1)
    record = job.admin.record(job.incarnations[job.actor], weight(1, lineage=2), "1", {"a": "b"}, "mine")
    assert record.ancestry == {"1": 0, "2": -1}


def test_rejected_predecessors_stand_with_a_retained_group_and_return_with_a_dropped_one(make_job: MakeJob) -> None:
    job = make_job(staleness=0, batch=2)
    first, second = job.tickets(2)
    first = job.rollout.redraw(first, "a test")
    job.put([first])
    job.rollout.redraw(second, "a test")
    begin_epoch(job, 2)
    assert job.restore.kept_groups == 1
    (ticket,) = job.tickets(5)
    assert (ticket.group, ticket.attempt, ticket.prompt_index) == (1, 0, 1)
    assert [job.rollout.redraw(ticket, "a test").prompt_index] == [3]


def test_prompts_that_were_passed_over_stand_and_return_as_rejected_ones_do(make_job: MakeJob) -> None:
    job = make_job(staleness=0, batch=2)
    first, second = job.tickets(2)
    job.put([job.rollout.pass_over(first)])
    job.rollout.pass_over(second)
    begin_epoch(job, 2)
    assert job.restore.kept_groups == 1
    (ticket,) = job.tickets(5)
    assert (ticket.group, ticket.attempt, ticket.prompt_index) == (1, 0, 1)
    assert [job.rollout.pass_over(ticket).prompt_index] == [3]


def test_a_forward_result_of_the_old_epoch_is_refused_and_its_rows_are_claimed_again(make_job: MakeJob) -> None:
    job = make_job()
    job.put(job.tickets(2))
    old = job.client(Role.ACTOR_FWD)
    batch = old.claim(LOG_PROBS.name, range(6), 10, timeout=0)
    assert isinstance(batch, Batch)
    begin_epoch(job, 2)
    with pytest.raises(Fenced):
        job.put_derived(old, batch, "log_probs")
    again = job.client(Role.ACTOR_FWD).claim(LOG_PROBS.name, range(6), 10, timeout=0)
    assert isinstance(again, Batch)
    assert again.rows.tolist() == batch.rows.tolist()


def test_bytes_of_ended_incarnations_that_nothing_names_are_swept(make_job: MakeJob) -> None:
    job = make_job()
    job.put(job.tickets(1))
    incarnation = job.incarnation(job.rollout)
    with job.servers.units[0].admin() as admin:
        admin.set(f"1:{incarnation}:left", b"bytes without a commit")
        assert job.admin.sweeper.sweep().orphans == 0
        begin_epoch(job, 2)
        assert job.admin.sweeper.sweep().orphans == 1
        assert admin.exists(f"1:{incarnation}:left") == 0
    job.check()
