"""A client process dies by SIGKILL in the middle of a call; nothing of it may be half done."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_api import failpoints
from rljob_api.names import Role
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import Batch
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.world import LOG_PROBS, make_incarnation
from tests.weights import weight

MakeJob = Callable[..., Job]


def run_victim(job: Job, what: str, folder: Path, armed: dict[str, int]) -> str:
    """Runs `what` in a process that dies at the failpoint; gives its incarnation."""
    role = Role.ACTOR_FWD if what in ("claim", "results") else Role.ROLLOUT
    incarnation = make_incarnation(role, 1)
    job.admin.begin_incarnation(incarnation)
    child = os.fork()
    if child == 0:
        try:
            os.environ["RLJOB_FAILPOINTS_DIR"] = str(folder)
            failpoints._ARMED.update(armed)
            work(TransferQueueClient(job.servers.endpoints, job.shape, incarnation), job, what)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    return incarnation.id


def work(queue: TransferQueueClient, job: Job, what: str) -> None:
    if what in ("claim", "results"):
        batch = queue.claim(LOG_PROBS.name, range(6), 100, timeout=0)
        if what == "results":
            assert isinstance(batch, Batch)
            job.put_derived(queue, batch, "log_probs")
        return
    tickets = queue.claim_tickets(weight(0), 2, 0)
    assert isinstance(tickets, list)
    if what == "put":
        queue.put_groups([job.group(ticket) for ticket in tickets])


@pytest.mark.parametrize(
    ("armed", "committed"),
    [
        pytest.param({"queue.between_bytes_and_commit": 1}, False, id="between the bytes and the commit"),
        pytest.param({"queue.after_script": 2}, True, id="after the commit and before its reply"),
    ],
)
def test_a_group_is_put_whole_or_not_at_all(
    make_job: MakeJob, tmp_path: Path, armed: dict[str, int], *, committed: bool
) -> None:
    job = make_job(batch=2)
    incarnation = run_victim(job, "put", tmp_path, armed)
    job.check()
    job.admin.suspect(incarnation)
    job.admin.end_incarnation(incarnation)
    assert job.admin.stats().rows_ready["actor_log_probs"] == (4 if committed else 0)
    assert (job.admin.sweeper.sweep().orphans > 0) is not committed
    job.rollout = job.client(Role.ROLLOUT)
    (ticket,) = job.tickets(1)
    assert (ticket.rollout_id, ticket.alone) == (1 if committed else 0, False)


def test_tickets_whose_reply_was_lost_come_back_with_the_incarnation(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job(batch=2)
    incarnation = run_victim(job, "tickets", tmp_path, {"queue.after_script": 1})
    assert job.admin.stats().groups_issued == 2
    job.admin.end_incarnation(incarnation)
    job.rollout = job.client(Role.ROLLOUT)
    assert [(ticket.rollout_id, ticket.group) for ticket in job.tickets(2, weight(0))] == [(0, 0), (0, 1)]


def test_rows_whose_claim_was_lost_come_back_with_the_incarnation(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(2))
    incarnation = run_victim(job, "claim", tmp_path, {"queue.after_script": 1})
    assert job.admin.stats().rows_ready["actor_log_probs"] == 0
    job.admin.end_incarnation(incarnation)
    batch = job.client(Role.ACTOR_FWD).claim(LOG_PROBS.name, range(6), 100, timeout=0)
    assert isinstance(batch, Batch)
    assert batch.rows.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("armed", "committed"),
    [
        pytest.param({"queue.between_bytes_and_commit": 1}, False, id="between the bytes and the commit"),
        pytest.param({"queue.after_script": 2}, True, id="after the commit and before its reply"),
    ],
)
def test_results_are_put_whole_or_their_rows_come_back(
    make_job: MakeJob, tmp_path: Path, armed: dict[str, int], *, committed: bool
) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(2))
    incarnation = run_victim(job, "results", tmp_path, armed)
    assert job.admin.stats().rows_ready["actor_log_probs"] == 0
    job.admin.end_incarnation(incarnation)
    assert job.admin.stats().rows_ready["actor_log_probs"] == (0 if committed else 4)
    assert (job.admin.sweeper.sweep().orphans > 0) is not committed
    job.prove()
    job.derive(0)
    job.train(0)
