"""A forward task that needs all rows of a rollout at once: claimed, lost and made again as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rljob_api.names import Role
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.admin import InWork
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import LeaseLost
from rljob_workers.transfer_queue.types import (
    Batch,
    Exhausted,
    ForwardPolicy,
    NotReady,
    QueueShape,
    QueueTiming,
    Task,
    TaskKind,
)
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.test_lost_rows import lose
from tests.integration.transfer_queue.test_missing_chunks import delete_chunk
from tests.integration.transfer_queue.victims import Receive, Send, victim
from tests.integration.transfer_queue.world import LOG_PROBS, TRAIN, make_incarnation, make_shape
from tests.weights import weight

MakeJob = Callable[..., Job]
LONG_SECONDS = 60.0
WHITEN = Task("whiten", TaskKind.FORWARD, ("rewards", "log_probs"), ("advantages", "returns"), ForwardPolicy.PARTITION)
NEEDS = ("tokens", "rewards", "log_probs", "advantages")
CRITIC = Task("critic_train", TaskKind.TRAINING, ("tokens", "returns"), publishes=False)


def shape(*others: Task, **sizes: int) -> QueueShape:
    return replace(make_shape(**sizes), tasks=(LOG_PROBS, WHITEN, replace(TRAIN, needs=NEEDS), *others))


def claim(job: Job, client: TransferQueueClient, max_rows: int = 1, timeout: float = 0.0) -> Batch:
    answer = client.claim(WHITEN.name, range(job.shape.num_rollouts), max_rows, timeout=timeout)
    assert isinstance(answer, Batch), answer
    return answer


def put(client: TransferQueueClient, batch: Batch, value: float = 0.5) -> None:
    column = Jagged.scalars(torch.full((len(batch.rows),), value))
    client.put(batch, {"advantages": column, "returns": column}, weight=None)


def score(job: Job, max_rows: int = 100, *, r: int | None = None, unit: int | None = None) -> None:
    """The log-probs of so many rows of train_r, or of all partitions; on one unit where it is given."""
    client = job.client(Role.ACTOR_FWD)
    if unit is not None:
        stores_on(client, unit)
    partitions = range(job.shape.num_rollouts) if r is None else range(r, r + 1)
    while max_rows > 0 and isinstance(batch := client.claim(LOG_PROBS.name, partitions, max_rows, timeout=0), Batch):
        job.put_derived(client, batch, "log_probs")
        max_rows -= len(batch.rows)


def test_the_rows_come_at_once_and_only_when_the_last_of_them_is_ready(make_job: MakeJob) -> None:
    job = make_job(shape(batch=3))
    client = job.client(Role.ADVANTAGES)
    first, second, third = job.tickets(3)
    job.put([first, third])
    score(job)
    job.put([second])
    score(job, 1)
    waiting = client.claim(WHITEN.name, range(1), 100, timeout=0)
    assert isinstance(waiting, NotReady)
    score(job, 1)
    batch = claim(job, client, max_rows=1)
    assert (batch.rows.tolist(), batch.groups.tolist()) == ([0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2])
    assert isinstance(client.claim(WHITEN.name, range(1), 100, timeout=0), NotReady), "one has all of them"
    put(client, batch)
    assert client.claim(WHITEN.name, range(1), 100, timeout=0) == Exhausted()
    trained = job.claim_training(0, replace(TRAIN, needs=NEEDS))
    assert isinstance(trained, Batch)
    assert trained.columns["advantages"].values.tolist() == [0.5] * 6


def test_the_oldest_whole_partition_is_served_first_and_an_older_one_that_is_not_whole_holds_none_up(
    make_job: MakeJob,
) -> None:
    job = make_job(shape(batch=2, staleness=2))
    tickets = job.tickets(6)
    job.put([ticket for ticket in tickets if ticket.rollout_id > 0])
    forward = job.client(Role.ACTOR_FWD)
    while isinstance(batch := forward.claim(LOG_PROBS.name, range(3), 100, timeout=0), Batch):
        job.put_derived(forward, batch, "log_probs")
    client = job.client(Role.ADVANTAGES)
    assert [claim(job, client).rollout_id for _ in range(2)] == [1, 2]


def test_rows_that_are_given_back_are_claimed_by_another_as_one(make_job: MakeJob) -> None:
    job = make_job(shape(batch=2))
    job.put(job.tickets(2))
    score(job)
    first, second = job.client(Role.ADVANTAGES), job.client(Role.ADVANTAGES, replica=1)
    batch = claim(job, first)
    first.release(batch)
    assert claim(job, second).rows.tolist() == batch.rows.tolist() == [0, 1, 2, 3]
    with pytest.raises(LeaseLost, match="4 rows of train_0"):
        put(first, batch)


def claims_and_waits(job: Job) -> Callable[[Send, Receive], None]:
    """A consumer's work, until it gets a line."""
    incarnation = make_incarnation(Role.ADVANTAGES, job.epoch)
    job.admin.begin_incarnation(incarnation)

    def work(send: Send, receive: Receive) -> None:
        queue = TransferQueueClient(job.servers.endpoints, job.shape, incarnation, timing=job.timing)
        batch = claim(job, queue, timeout=LONG_SECONDS)
        send(f"claimed {batch.rows.tolist()}")
        receive()
        put(queue, batch, 2.0)
        send("put")

    return work


@pytest.mark.parametrize("fate", ["is killed", "sleeps beyond its lease"])
def test_a_partition_whose_consumer_dies_is_served_by_another(make_job: MakeJob, fate: str) -> None:
    job = make_job(shape(batch=2), timing=QueueTiming(lease_seconds=0.2))
    job.put(job.tickets(2))
    score(job)
    with victim(claims_and_waits(job)) as process:
        assert process.read_line() == "claimed [0, 1, 2, 3]"
        other = job.client(Role.ADVANTAGES, replica=1)
        if fate == "is killed":
            process.kill()
        else:
            process.stop()
        batch = claim(job, other, timeout=LONG_SECONDS)
        assert batch.lease is not None
        job.admin.beats([InWork(job.incarnation(other), [], [batch.lease])])
        put(other, batch)
        if fate != "is killed":
            process.resume()
            process.report("go")
            assert process.read_line().startswith("LeaseLost: TransferQueue: lease ")
    trained = job.claim_training(0, replace(TRAIN, needs=NEEDS))
    assert isinstance(trained, Batch)
    assert trained.columns["advantages"].values.tolist() == [0.5] * 4
    job.prove()


def stores_on(client: TransferQueueClient, unit: int) -> TransferQueueClient:
    """What it puts from now on goes to one unit."""
    client.calls.units._shunned_until[1 - unit] = float("inf")
    client.calls.units._shunned_until[unit] = 0.0
    return client


def test_what_one_row_loses_is_made_again_for_all_of_them(make_job: MakeJob) -> None:
    """Group 1 alone lies on unit 1: it is generated again, and what was made with it goes with it."""
    job = make_job(shape(batch=2))
    for unit, ticket in enumerate(job.tickets(2)):
        assert all(stores_on(job.rollout, unit).put_groups([job.group(ticket)]))
    score(job, unit=0)
    client = stores_on(job.client(Role.ADVANTAGES), 0)
    put(client, claim(job, client))
    assert job.admin.stats().rows_ready["actor_train"] == 4
    report = lose(job, 1)
    assert (report.reissued, report.recomputed) == (1, 1)
    ready = job.admin.stats().rows_ready
    assert (ready["actor_train"], ready["whiten"]) == (0, 0), "the rows of group 0 wait for those of group 1"
    job.check()
    job.put(job.tickets(1))
    score(job)
    again = claim(job, client)
    assert again.rows.tolist() == [0, 1, 2, 3]
    put(client, again)
    assert job.admin.stats().rows_ready["actor_train"] == 4
    job.prove()


def test_results_that_are_lost_are_made_again_and_a_claimer_of_rows_waits_for_them(make_job: MakeJob) -> None:
    job = make_job(shape(batch=2))
    stores_on(job.rollout, 0)
    job.put(job.tickets(2))
    score(job, unit=0)
    client = stores_on(job.client(Role.ADVANTAGES), 1)
    put(client, claim(job, client))
    train = replace(TRAIN, needs=NEEDS)
    assert isinstance(job.claim_training(0, train), Batch)
    assert lose(job, 1).recomputed == 2
    assert isinstance(job.claim_training(0, train), NotReady)
    put(client, claim(job, client))
    assert isinstance(job.claim_training(0, train), Batch)
    job.prove()


def test_a_column_that_is_lost_takes_those_that_were_written_with_it(make_job: MakeJob) -> None:
    """What is written anew must not leave bytes behind that rows count as theirs."""
    job = make_job(shape(batch=2))
    job.put(job.tickets(2))
    score(job)
    client = job.client(Role.ADVANTAGES)
    put(client, claim(job, client))
    delete_chunk(job, "advantages")
    train = replace(TRAIN, needs=NEEDS)
    assert isinstance(job.claim_training(0, train), NotReady)
    (report,) = job.admin.upkeep.declare_missing()
    assert report.loss.recomputed == 2
    put(client, claim(job, client))
    assert isinstance(job.claim_training(0, train), Batch)
    job.prove()


def test_a_restore_that_drops_a_group_drops_what_was_made_with_it(make_job: MakeJob) -> None:
    """Version 1 is not recorded: of train_1 the group that it made goes, and the other one stays."""
    job = make_job(shape(batch=2))
    tickets = job.tickets(3)
    job.put(tickets)
    score(job)
    client = job.client(Role.ADVANTAGES)
    put(client, claim(job, client))
    job.train(0, replace(TRAIN, needs=NEEDS))
    job.publish(1)
    job.put(job.tickets(1, weight(1)), weight(1))
    score(job, r=1)
    put(client, claim(job, client))
    assert job.admin.stats().rows_ready["actor_train"] == 4
    restore = job.raise_epoch(2)
    assert (restore.kept_groups, restore.dropped_groups) == (3, 1)
    job.rollout, job.actor = job.client(Role.ROLLOUT), job.client(Role.ACTOR)
    client = job.client(Role.ADVANTAGES)
    ready = job.admin.stats().rows_ready
    assert (ready["actor_train"], ready["whiten"]) == (4, 0), "all of train_0, and nothing of train_1"
    job.put(job.tickets(1))
    score(job, r=1)
    again = claim(job, client)
    assert (again.rollout_id, again.rows.tolist()) == (1, [0, 1, 2, 3])
    put(client, again)
    job.prove()


def test_a_second_trainer_that_missed_what_is_lost_needs_a_restart(make_job: MakeJob) -> None:
    """The publisher has the rows: what is made again for it may come of other weights than its own batch."""
    job = make_job(shape(CRITIC, batch=2))
    stores_on(job.rollout, 0)
    job.put(job.tickets(2))
    score(job, unit=0)
    client = stores_on(job.client(Role.ADVANTAGES), 1)
    put(client, claim(job, client))
    assert isinstance(job.claim_training(0, replace(TRAIN, needs=NEEDS)), Batch)
    assert lose(job, 1).needs_global_restart
    restore = job.raise_epoch(2)
    assert restore.kept_groups == 2
    again = claim(job, job.client(Role.ADVANTAGES))
    assert again.rows.tolist() == [0, 1, 2, 3]


def test_training_is_not_served_so() -> None:
    with pytest.raises(ValueError, match=r"^task t: policy Partition is for forward tasks"):
        Task("t", TaskKind.TRAINING, ("tokens",), policy=ForwardPolicy.PARTITION)
