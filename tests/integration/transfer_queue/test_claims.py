from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from rljob_api.names import Role, RolloutId
from rljob_api.spec.queue import Waiting
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.admin import InWork
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import Fenced, Incomplete, LeaseLost, Mismatch
from rljob_workers.transfer_queue.types import Batch, Claim, Exhausted, NotReady, QueueTiming
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.world import ADVANTAGES, LOG_PROBS, TRAIN
from tests.weights import weight

MakeJob = Callable[..., Job]
LONG_SECONDS = 60.0


def claim(
    job: Job, role: Role = Role.ACTOR_FWD, task: str = LOG_PROBS.name, rows: int = 100
) -> tuple[TransferQueueClient, Batch]:
    client = job.client(role)
    return client, claimed(client.claim(task, range(job.shape.num_rollouts), rows, timeout=0))


def claimed(answer: Claim) -> Batch:
    assert isinstance(answer, Batch), answer
    return answer


def test_rows_are_claimed_as_soon_as_they_are_put_oldest_partition_first(make_job: MakeJob) -> None:
    job = make_job(batch=2, samples=2)
    first, _, third, _ = job.tickets(4)
    job.put([third])
    job.put([first])
    client, batch = claim(job, rows=3)
    assert (batch.rollout_id, batch.rows.tolist(), batch.groups.tolist()) == (0, [0, 1], [0, 0])
    assert [row.tolist() for row in batch.columns["tokens"].rows()] == [[0, 1], [0, 1, 2]]
    assert claimed(client.claim(LOG_PROBS.name, range(6), 3, timeout=0)).rollout_id == 1


def test_groups_are_claimed_whole_and_only_when_all_their_rows_are_ready(make_job: MakeJob) -> None:
    job = make_job(batch=2, samples=2)
    job.put(job.tickets(2))
    forward, batch = claim(job, rows=3)
    job.put_derived(forward, batch, "log_probs")
    group = claimed(job.client(Role.ADVANTAGES).claim(ADVANTAGES.name, range(6), 4, timeout=0))
    assert group.rows.tolist() == [0, 1]


def test_a_result_after_the_lease_is_refused_and_the_rows_are_claimed_again(make_job: MakeJob) -> None:
    job = make_job()
    job.put(job.tickets(2))
    client, batch = claim(job)
    client.release(batch)
    before = job.servers.unit_keys()
    with pytest.raises(LeaseLost, match="4 rows of train_0"):
        job.put_derived(client, batch, "log_probs")
    assert job.servers.unit_keys() == before, "the bytes that were refused are still there"
    again = claimed(client.claim(LOG_PROBS.name, range(6), 100, timeout=0))
    assert again.rows.tolist() == batch.rows.tolist()


def test_leases_end_with_their_incarnation(make_job: MakeJob) -> None:
    job = make_job()
    job.put(job.tickets(2))
    client, batch = claim(job)
    job.admin.end_incarnation(job.incarnation(client))
    with pytest.raises(Fenced):
        job.put_derived(client, batch, "log_probs")
    _, again = claim(job)
    assert again.rows.tolist() == batch.rows.tolist()


def test_a_lease_that_no_beat_renews_ends(make_job: MakeJob) -> None:
    job = make_job(timing=QueueTiming(lease_seconds=0.0))
    job.put(job.tickets(2))
    client, batch = claim(job, rows=2)
    assert batch.lease is not None
    job.admin.beats([InWork(job.incarnation(client), [], [batch.lease])])
    other = claimed(client.claim(LOG_PROBS.name, range(6), 100, timeout=0))
    assert other.rows.tolist() == [2, 3]
    again = claimed(client.claim(LOG_PROBS.name, range(6), 100, timeout=0))
    assert again.rows.tolist() == [2, 3]


def test_a_lease_is_its_claimers_alone(make_job: MakeJob) -> None:
    job = make_job()
    job.put(job.tickets(2))
    client, batch = claim(job)
    other = job.client(Role.ACTOR_FWD, replica=1)
    with pytest.raises(LeaseLost):
        job.put_derived(other, batch, "log_probs")
    other.release(batch)
    assert isinstance(other.claim(LOG_PROBS.name, range(6), 100, timeout=0), NotReady), "another has handed them back"
    job.put_derived(client, batch, "log_probs")


def test_a_dead_weights_result_is_refused(make_job: MakeJob) -> None:
    job = make_job()
    job.put(job.tickets(2))
    client, batch = claim(job)
    with pytest.raises(Fenced, match="v0@9 is dead"):
        job.put_derived(client, batch, "log_probs", weight(0, lineage=9))


def test_exhausted_once_every_row_is_consumed(make_job: MakeJob) -> None:
    job = make_job(rollouts=2)
    job.step(0)
    client = job.client(Role.ACTOR_FWD)
    assert client.claim(LOG_PROBS.name, range(1), 4, timeout=0) == Exhausted()
    assert isinstance(client.claim(LOG_PROBS.name, range(2), 4, timeout=0), NotReady)
    job.record(1)
    assert client.claim(LOG_PROBS.name, range(1), 4, timeout=0) == Exhausted()


def test_ranks_share_a_training_batch_evenly_and_the_same_question_gets_the_same_rows(make_job: MakeJob) -> None:
    job = make_job(batch=4, samples=2)
    job.put(job.tickets(4))
    job.derive(0)

    def ask(rank: int) -> Batch:
        answer = job.actor.claim_training(TRAIN.name, RolloutId(0), 0, 8, rank, 2, timeout=0)
        assert isinstance(answer, Batch)
        return answer

    shares = [ask(rank) for rank in (0, 1)]
    assert sorted(row for share in shares for row in share.rows.tolist()) == list(range(8))
    assert [len(share.rows) for share in shares] == [4, 4]
    assert [int(share.columns["tokens"].lengths.sum()) for share in shares] == [10, 10]
    assert ask(1).rows.tolist() == shares[1].rows.tolist()
    with pytest.raises(Mismatch, match="claimed with 8 rows, not 4"):
        job.actor.claim_training(TRAIN.name, RolloutId(0), 0, 4, 0, 2, timeout=0)


def test_a_training_claim_states_what_it_waits_for(make_job: MakeJob) -> None:
    job = make_job(batch=2, samples=2)
    job.put(job.tickets(1))
    answer = job.claim_training(0)
    assert isinstance(answer, NotReady)
    assert answer.waiting_for == (
        "batch 0 (4 rows) of train_0 for actor_train; missing: tokens (2 rows), rewards (2 rows),"
        " log_probs (4 rows), ref_log_probs (4 rows), advantages (4 rows)"
    )


def test_nothing_is_published_before_every_row_is_trained(make_job: MakeJob) -> None:
    job = make_job()
    with pytest.raises(Incomplete, match="train_0: no row of it was generated"):
        job.publish(1)
    job.put(job.tickets(2))
    job.derive(0)
    with pytest.raises(Incomplete, match="0 of 4 rows are consumed by actor_train"):
        job.publish(1)
    with pytest.raises(Mismatch, match="batch 0 of train_0 was never claimed"):
        job.actor.commit_training(TRAIN.name, RolloutId(0), [0])
    job.train(0)
    job.publish(1)
    job.publish(1)
    with pytest.raises(Incomplete, match="cannot be published after version 1"):
        job.publish(3)


def test_a_batch_that_is_committed_twice_counts_once(make_job: MakeJob) -> None:
    job = make_job()
    job.put(job.tickets(2))
    job.derive(0)
    assert isinstance(job.actor.claim_training(TRAIN.name, RolloutId(0), 0, 2, 0, 1, timeout=0), Batch)
    for _ in range(2):
        job.actor.commit_training(TRAIN.name, RolloutId(0), [0])
    with pytest.raises(Incomplete, match="2 of 4 rows are consumed by actor_train"):
        job.publish(1)


def test_records_only_grow_and_make_garbage_of_what_is_before_them(make_job: MakeJob) -> None:
    job = make_job()
    job.publish(0)
    job.record(0)
    with pytest.raises(Incomplete, match="version 1 is not published yet"):
        job.record(1)
    job.step(0)
    assert job.admin.sweeper.sweep().partitions == 0
    job.record(1)
    job.record(1)
    swept = job.admin.sweeper.sweep()
    assert (swept.partitions, swept.chunks > 0) == (1, True)
    assert job.admin.sweeper.sweep().partitions == 0
    with pytest.raises(Incomplete, match="not newer than the recorded version 1"):
        job.admin.record(job.incarnations[job.actor], weight(1), "1", {}, "another call")


@pytest.mark.parametrize("waiting", list(Waiting))
def test_a_waiting_claim_is_answered_when_the_rows_come(make_job: MakeJob, waiting: Waiting) -> None:
    job = make_job()
    consumer = job.client(Role.ACTOR_FWD, waiting=waiting)
    answers: list[object] = []

    def wait() -> None:
        answers.append(consumer.claim(LOG_PROBS.name, range(6), 4, timeout=LONG_SECONDS))

    thread = threading.Thread(target=wait)
    thread.start()
    job.put(job.tickets(2))
    thread.join(LONG_SECONDS)
    assert isinstance(answers[0], Batch)


def test_fields_that_do_not_fit_are_refused_with_their_names(make_job: MakeJob) -> None:
    job = make_job()
    job.put(job.tickets(2))
    client, batch = claim(job)
    with pytest.raises(ValueError, match="log_probs has 1 rows, the batch has 4"):
        client.put(batch, {"log_probs": Jagged.scalars(torch.zeros(1))}, weight=weight(0))
    with pytest.raises(ValueError, match="no task writes exactly"):
        client.put(batch, {"scores": Jagged.scalars(torch.zeros(4))}, weight=weight(0))
    with pytest.raises(ValueError, match="'actor_train' is no Forward task"):
        client.claim(TRAIN.name, range(1), 1, timeout=0)
