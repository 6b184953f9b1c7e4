"""Rows that are lost after a forward role was done with them: it serves them again, whatever it waits for."""

import os
import signal
from pathlib import Path

import pytest

from rljob_workers import pipeline

from .job import RunningJob, at_leisure, kill, make_simulated, stop

ROWS = 32
"""Of a partition, by `make_simulated`."""


def rows_done(job: RunningJob, rollout_id: int, task: str) -> int:
    """Of a partition. What someone asked for before the last call of this is carried out by now."""
    with job.control() as control:
        return int(control.hget(f"p:{rollout_id}:done", task) or 0)


def stop_between_partitions(job: RunningJob) -> int:
    """Stops advantages where it has the next partition's rows still before it, so that training has none; its pid.

    A lost row of a partition that is in training is another story: it means a global restart.
    """
    pid = job.rank_pid("advantages")

    def stopped() -> bool:
        stop(pid)
        following = len(job.metrics())
        are_made = rows_done(job, following, pipeline.ACTOR_LOG_PROBS.name) == ROWS
        is_begun = rows_done(job, following, pipeline.COMPUTE_ADVANTAGES) > 0
        if is_begun:
            os.kill(pid, signal.SIGCONT)
        return are_made and not is_begun

    job.wait_for("advantages with a whole partition before it, and its log-probs made", stopped)
    return pid


@pytest.mark.parametrize(
    "last",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["before the next version", "at the end of the job"],
)
def test_rows_lost_after_their_log_probs_were_made_are_made_again(tmp_path: Path, last: bool) -> None:
    # At the end of the job the second partition of two: before its rows come, someone must have stopped advantages.
    num_rollouts, seconds = (2, 5.0) if last else (200, 0.5)
    manifest = make_simulated(
        tmp_path,
        rollout={"numRollouts": num_rollouts, "maxStaleness": 0},
        restartPolicy={"heartbeatTimeoutSeconds": 120, "stallTimeoutSeconds": 600},
    )
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path, seconds)) as job:
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
