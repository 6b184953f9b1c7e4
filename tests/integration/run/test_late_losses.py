"""Rows that are lost after a forward role was done with them: it serves them again, whatever it waits for."""

import json
import os
import signal
from pathlib import Path

import pytest
import redis

from rljob_workers.roles import tasks
from rljob_workers.transfer_queue.types import Task

from .job import RunningJob, kill, make_manifest, stop

ROWS = 32
"""Of a partition, by `make_manifest`."""


def rows_done(job: RunningJob, task: Task) -> int:
    """Of the partition that is trained next."""
    url = json.loads((job.out / "endpoints.json").read_bytes())["controlRedis"]
    password, _, path = url.removeprefix("unix://:").partition("@")
    with redis.Redis(unix_socket_path=path, password=password) as control:
        return int(control.hget(f"p:{len(job.metrics())}:done", task.name) or 0)


def stop_between_partitions(job: RunningJob) -> int:
    """Stops advantages where it has the next partition's rows still before it, so that training has none; its pid.

    A lost row of a partition that is in training is another story: it means a global restart.
    """
    pid = job.rank_pid("advantages")

    def stopped() -> bool:
        stop(pid)
        if rows_done(job, tasks.COMPUTE_ADVANTAGES) == 0 and rows_done(job, tasks.ACTOR_LOG_PROBS) == ROWS:
            return True
        if rows_done(job, tasks.COMPUTE_ADVANTAGES) > 0:
            os.kill(pid, signal.SIGCONT)
        return False

    job.wait_for("advantages with a whole partition before it, and its log-probs made", stopped)
    return pid


@pytest.mark.parametrize("last", [False, True], ids=["before the next version", "at the end of the job"])
def test_rows_lost_after_their_log_probs_were_made_are_made_again(tmp_path: Path, last: bool) -> None:
    num_rollouts = 8 if last else 400
    manifest = make_manifest(
        tmp_path,
        rollout={"numRollouts": num_rollouts, "maxStaleness": 0},
        restartPolicy={"heartbeatTimeoutSeconds": 120, "stallTimeoutSeconds": 600},
    )
    with RunningJob(tmp_path, manifest) as job:
        job.wait_for("the first metrics", lambda: bool(job.metrics()))
        stopped = stop_between_partitions(job)
        units = ("storage-0", "storage-1")
        for unit in units:
            kill(job.infrastructure_pid(unit))
        job.wait_for("both units", lambda: all(job.infrastructure_restarts(unit) == 1 for unit in units))
        step = job.metrics()[-1]["step"]
        os.kill(stopped, signal.SIGCONT)
        job.wait_for("the next step", lambda: job.metrics()[-1]["step"] > step)
        if last:
            job.assert_succeeded()
        job.assert_epoch(1)
