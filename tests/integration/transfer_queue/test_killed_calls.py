"""A client process dies by SIGKILL in the middle of a call; nothing of it may be half done."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_api.names import Role
from rljob_workers.transfer_queue.types import Batch
from tests.integration.transfer_queue.job import Job, weight
from tests.integration.transfer_queue.world import LOG_PROBS, make_life

MakeJob = Callable[..., Job]
ENDS_WITHIN_SECONDS = 100.0

VICTIM = """
import sys
from rljob_api.wire.identity import Endpoints, Life
from rljob_workers.transfer_queue.client import TransferQueueClient
from tests.integration.transfer_queue.job import Job, weight
from tests.integration.transfer_queue.world import make_shape

shape = make_shape(batch=2)
endpoints, life = Endpoints.model_validate_json(sys.argv[1]), Life.model_validate_json(sys.argv[2])
queue = TransferQueueClient(endpoints, shape, life)
what = sys.argv[3]
if what == "claim":
    queue.claim("actor_log_probs", range(6), 100, timeout=0)
else:
    tickets = queue.claim_tickets(weight(0), 2, 0)
    if what == "put":
        job = Job.__new__(Job)
        job.shape = shape
        queue.put_groups([job.group(ticket) for ticket in tickets])
raise SystemExit("the failpoint was not passed")
"""


def run_victim(job: Job, what: str, folder: Path, failpoints: str) -> str:
    """Runs `what` in a process that dies at the failpoint; gives its incarnation."""
    role = Role.ACTOR_FWD if what == "claim" else Role.ROLLOUT
    life = make_life(role, 1)
    job.steward.begin_life(life)
    endpoints, text = job.servers.endpoints.model_dump_json(), life.model_dump_json()
    process = subprocess.run(
        [sys.executable, "-c", VICTIM, endpoints, text, what],
        env={"RLJOB_FAILPOINTS": failpoints, "RLJOB_FAILPOINTS_DIR": str(folder), "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        timeout=ENDS_WITHIN_SECONDS,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    return life.incarnation


@pytest.mark.parametrize(
    ("failpoints", "committed"),
    [
        pytest.param("queue.between_bytes_and_commit=1", False, id="between the bytes and the commit"),
        pytest.param("queue.after_script=2", True, id="after the commit and before its reply"),
    ],
)
def test_a_group_is_put_whole_or_not_at_all(
    make_job: MakeJob, tmp_path: Path, failpoints: str, *, committed: bool
) -> None:
    job = make_job(batch=2)
    incarnation = run_victim(job, "put", tmp_path, failpoints)
    job.check()
    job.steward.suspect(incarnation)
    job.steward.end_life(incarnation)
    assert job.steward.stats().rows_ready["actor_log_probs"] == (4 if committed else 0)
    assert (job.steward.sweep().orphans > 0) is not committed
    job.rollout = job.client(Role.ROLLOUT)
    (ticket,) = job.tickets(1)
    assert (ticket.rollout_id, ticket.alone) == ((1, False) if committed else (0, True))


def test_tickets_whose_reply_was_lost_come_back_with_the_life(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job(batch=2)
    incarnation = run_victim(job, "tickets", tmp_path, "queue.after_script=1")
    assert job.steward.stats().groups_issued == 2
    job.steward.end_life(incarnation)
    job.rollout = job.client(Role.ROLLOUT)
    assert [(ticket.rollout_id, ticket.group) for ticket in job.tickets(2, weight(0))] == [(0, 0), (0, 1)]


def test_rows_whose_claim_was_lost_come_back_with_the_life(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(2))
    incarnation = run_victim(job, "claim", tmp_path, "queue.after_script=1")
    assert job.steward.stats().rows_ready["actor_log_probs"] == 0
    job.steward.end_life(incarnation)
    batch = job.client(Role.ACTOR_FWD).claim(LOG_PROBS.name, range(6), 100, timeout=0)
    assert isinstance(batch, Batch)
    assert batch.rows.tolist() == [0, 1, 2, 3]
