"""Restarts are never more than faults, however short the back-off: random faults of every process of a run, and those
that once made a job restart itself again and again.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from .chaos import Chaos, assert_one_restart_a_cause, strike
from .job import RunningJob, at_leisure, kill, make_manifest

SHORT_BACKOFF: dict[str, Any] = {"backoff": {"initialSeconds": 0.1}, "maxGlobalRestarts": 1000, "threshold": 1000}
PARENT_KILLS = 5
"""After three ends within two minutes it is started again later and later; pods are asked for meanwhile."""
SHARDED: dict[str, dict[str, Any]] = {
    "roles": {"reference": {}, "actor": {"backend": "Fsdp", "replicas": 2, "ranksPerPod": 2}},
    "training": {"microBatchSize": 8, "maxTokensPerMicroBatch": 32},
}
SEEDS = [int(seed) for seed in os.environ.get("RLJOB_CHAOS_SEEDS", "1 2 3 4 5").split()]


@pytest.mark.long
def test_one_cause_is_one_restart_with_a_back_off_that_a_new_launcher_is_faster_than(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path, rollout={"numRollouts": 150}, restartPolicy=SHORT_BACKOFF)
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        job.wait_for_step(1)
        for turn, role in enumerate(("rollout", "actor"), start=2):
            kill(int(job.pod(role)["launcherPid"]))
            job.wait_for("the next epoch", lambda epoch=turn: job.epoch() >= epoch and job.ready())  # type: ignore[misc] # bound per turn
            job.assert_epoch(turn)
        kill(int(job.pod("reference")["launcherPid"]))
        job.wait_for_event("LauncherLost", role="reference", scope="InPlace")
        job.wait_for("the role to be ready again", job.ready)
        job.assert_epoch(3)
        for _ in range(PARENT_KILLS):
            pid = job.infrastructure_pid("parent")
            kill(pid)
            job.wait_for("another parent", lambda killed=pid: job.infrastructure_pid("parent") != killed)  # type: ignore[misc] # bound per turn
        job.wait_for("all to be ready", job.ready)
        job.assert_epoch(3 + PARENT_KILLS)
        job.assert_succeeded()


@pytest.mark.long
def test_random_faults_restart_no_oftener_than_they_happen(tmp_path: Path) -> None:
    withstands(tmp_path, Chaos(seed=7, num_faults=8, seconds_between=(0.3, 1.5)))


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_many_random_faults_restart_no_oftener_than_they_happen(tmp_path: Path, seed: int) -> None:
    withstands(tmp_path, Chaos(seed, num_faults=30, stops_for_good=True))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_faults_of_four_sharded_ranks_restart_no_oftener_than_they_happen(tmp_path: Path, seed: int) -> None:
    withstands(tmp_path, Chaos(seed, num_faults=15, stops_for_good=True), rollouts_a_fault=5, **SHARDED)


def withstands(tmp_path: Path, chaos: Chaos, rollouts_a_fault: int = 15, **changes: dict[str, Any]) -> None:
    """A job under these faults succeeds, restarts no oftener than they happen, and has trained everything once."""
    # Enough to do for as long as it is struck, and no prompt is to blame for the deaths of its workers.
    rollout = {"numRollouts": rollouts_a_fault * chaos.num_faults, "maxAttempts": 1000}
    manifest = make_manifest(tmp_path, rollout=rollout, restartPolicy=SHORT_BACKOFF, **changes)
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path, seconds=0.5)) as job:
        job.wait_for_step(1)
        tally = strike(job, chaos)
        job.finish()
        assert_one_restart_a_cause(job, tally)
        job.assert_succeeded()
