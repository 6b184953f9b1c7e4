"""Rows that are lost after a forward role was done with them: it serves them again, whatever it waits for."""

import json
import os
import signal
from pathlib import Path

import pytest
import redis

from rljob_workers.roles import tasks

from .job import RunningJob, kill, make_manifest, stop


def log_probs_are_done(job: RunningJob, rollout_id: int) -> bool:
    """Whether actor_fwd has nothing more to do for this partition, and so waits for the next version."""
    url = json.loads((job.out / "endpoints.json").read_bytes())["controlRedis"]
    password, _, path = url.removeprefix("unix://:").partition("@")
    with redis.Redis(unix_socket_path=path, password=password) as control:
        done = control.hget(f"p:{rollout_id}:done", tasks.ACTOR_LOG_PROBS.name)
    return int(done or 0) == 32


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
        stopped = job.rank_pid("advantages")
        stop(stopped)
        job.wait_for("log-probs of all rows of a partition", lambda: log_probs_are_done(job, len(job.metrics())))
        units = ("storage-0", "storage-1")
        for unit in units:
            kill(job.infrastructure_pid(unit))
        job.wait_for("both units", lambda: all(job.infrastructure_restarts(unit) == 1 for unit in units))
        step = job.metrics()[-1]["step"]
        os.kill(stopped, signal.SIGCONT)
        job.wait_for("the next step", lambda: job.metrics()[-1]["step"] > step)
        if last:
            job.assert_succeeded()
        assert job.epoch() == 1
