"""Consumers and producers that die, sleep or come back too late, as processes: SIGKILL, SIGSTOP, SIGCONT."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rljob_api.names import Role
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.admin import InWork
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import Batch, Exhausted, QueueTiming
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.victims import Receive, Send, Victim, victim
from tests.integration.transfer_queue.world import LOG_PROBS, make_incarnation
from tests.weights import weight

MakeJob = Callable[..., Job]
LONG_SECONDS = 60.0
SHORT_LEASES = QueueTiming(lease_seconds=0.2)
LATE, IN_TIME = 2.0, 1.0
"""The log-probs of the one whose lease is over, and those of the one who has it."""


def consume(job: Job, role: Role = Role.ACTOR_FWD) -> tuple[Callable[[Send, Receive], None], str]:
    """A consumer's work: claims all, waits for a word, puts. And its incarnation."""
    incarnation = make_incarnation(role, job.epoch)
    job.admin.begin_incarnation(incarnation)

    def work(send: Send, receive: Receive) -> None:
        queue = TransferQueueClient(job.servers.endpoints, job.shape, incarnation, timing=job.timing)
        batch = queue.claim(LOG_PROBS.name, range(1), 100, timeout=LONG_SECONDS)
        assert isinstance(batch, Batch)
        send(f"claimed {batch.rows.tolist()}")
        receive()
        put(queue, batch, LATE)
        send("put")

    return work, incarnation.id


def produce(job: Job) -> tuple[Callable[[Send, Receive], None], str]:
    """A producer's work: takes a ticket, waits for a word, puts its group. And its incarnation."""
    incarnation = make_incarnation(Role.ROLLOUT, job.epoch, replica=7)
    job.admin.begin_incarnation(incarnation)

    def work(send: Send, receive: Receive) -> None:
        queue = TransferQueueClient(job.servers.endpoints, job.shape, incarnation)
        tickets = queue.claim_tickets(weight(0), 1, LONG_SECONDS)
        assert isinstance(tickets, list)
        send("has a ticket")
        receive()
        send(f"put {queue.put_groups([job.group(ticket) for ticket in tickets])}")

    return work, incarnation.id


def put(queue: TransferQueueClient, batch: Batch, value: float) -> None:
    queue.put(batch, {"log_probs": Jagged.scalars(torch.full((len(batch.rows),), value))}, weight=weight(0))


def claim_all(client: TransferQueueClient) -> Batch:
    batch = client.claim(LOG_PROBS.name, range(1), 100, timeout=LONG_SECONDS)
    assert isinstance(batch, Batch)
    return batch


def trained_log_probs(job: Job) -> list[float]:
    job.derive(0)
    batch = job.claim_training(0)
    assert isinstance(batch, Batch)
    return batch.columns["log_probs"].values.tolist()


def test_rows_of_a_killed_consumer_are_claimed_by_others_when_its_lease_is_over(make_job: MakeJob) -> None:
    job = make_job(batch=2, timing=SHORT_LEASES)
    job.put(job.tickets(2))
    work, _ = consume(job)
    with victim(work) as process:
        assert process.read_line() == "claimed [0, 1, 2, 3]"
        process.kill()
        other = job.client(Role.ACTOR_FWD, replica=1)
        batch = claim_all(other)
    assert batch.rows.tolist() == [0, 1, 2, 3]
    put(other, batch, IN_TIME)
    assert other.claim(LOG_PROBS.name, range(1), 100, timeout=0) == Exhausted()
    assert trained_log_probs(job) == [IN_TIME] * 4


@pytest.mark.parametrize("when", ["while another holds the rows", "after another has put them"])
def test_a_consumer_that_slept_beyond_its_lease_commits_nothing(make_job: MakeJob, when: str) -> None:
    job = make_job(batch=2, timing=SHORT_LEASES)
    job.put(job.tickets(2))
    work, _ = consume(job)
    with victim(work) as process:
        process.read_line()
        process.stop()
        other = job.client(Role.ACTOR_FWD, replica=1)
        batch = claim_all(other)
        assert batch.lease is not None
        job.admin.beats([InWork(job.incarnation(other), [], [batch.lease])])
        if when == "after another has put them":
            put(other, batch, IN_TIME)
        process.resume()
        process.report("go")
        assert process.read_line().startswith("LeaseLost: TransferQueue: lease ")
    if when == "while another holds the rows":
        put(other, batch, IN_TIME)
    assert trained_log_probs(job) == [IN_TIME] * 4


def of_an_older_epoch(job: Job, _incarnation: str) -> None:
    job.restore = job.raise_epoch(2)
    job.rollout, job.actor = job.client(Role.ROLLOUT), job.client(Role.ACTOR)


def of_the_same_epoch(job: Job, incarnation: str) -> None:
    job.admin.end_incarnation(incarnation)


@pytest.mark.parametrize("over", [of_an_older_epoch, of_the_same_epoch])
@pytest.mark.parametrize("begin", [consume, produce])
def test_a_zombie_is_refused_and_its_bytes_are_swept(
    make_job: MakeJob,
    begin: Callable[[Job], tuple[Callable[[Send, Receive], None], str]],
    over: Callable[[Job, str], None],
) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(1))
    work, incarnation = begin(job)
    with victim(work) as process:
        process.read_line()
        process.stop()
        over(job, incarnation)
        process.resume()
        process.report("go")
        assert process.read_line().startswith("Fenced: ")
    assert job.admin.sweeper.sweep().orphans > 0
    job.put(job.tickets(1))
    job.derive(0)
    job.train(0)


def test_consumers_killed_one_after_another_lose_no_row_and_double_none(make_job: MakeJob) -> None:
    job = make_job(batch=4, samples=4, timing=SHORT_LEASES)
    job.put(job.tickets(4))
    retained: list[int] = []
    living: list[Victim] = []
    try:
        for _ in range(4):
            living.append(Victim(consume_some(job, 5)))
            living[-1].read_line()
            living[-1].kill()
        other = job.client(Role.ACTOR_FWD, replica=1)
        while isinstance(batch := other.claim(LOG_PROBS.name, range(1), 3, timeout=LONG_SECONDS), Batch):
            retained += batch.rows.tolist()
            put(other, batch, IN_TIME)
    finally:
        for process in living:
            process.kill()
    assert sorted(retained) == list(range(16))


def consume_some(job: Job, max_rows: int) -> Callable[[Send, Receive], None]:
    """Claims some rows and falls silent."""
    incarnation = make_incarnation(Role.ACTOR_FWD, job.epoch, replica=max_rows)
    job.admin.begin_incarnation(incarnation)

    def work(send: Send, receive: Receive) -> None:
        queue = TransferQueueClient(job.servers.endpoints, job.shape, incarnation, timing=job.timing)
        batch = queue.claim(LOG_PROBS.name, range(1), max_rows, timeout=LONG_SECONDS)
        assert isinstance(batch, Batch)
        send(f"claimed {len(batch.rows)}")
        receive()

    return work
