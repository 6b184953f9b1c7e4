"""Autoscaling of a local run: rollouts join while the actor is starved, and drain when they are ahead of it."""

from pathlib import Path
from typing import Any

import pytest

from tests.brakes import Brake

from .job import RunningJob, make_manifest

SOON = {"minReplicas": 1, "maxReplicas": 2, "scaleUpAfterSeconds": 10, "scaleDownAfterSeconds": 10}

pytestmark = pytest.mark.timeout(900)


def rollouts(job: RunningJob) -> list[dict[str, Any]]:
    """The replicas as the status has them."""
    return next((role["pods"] for role in job.status().get("roles", []) if role["name"] == "rollout"), [])


def engines(job: RunningJob) -> list[int]:
    """Their processes."""
    return [engine["pid"] for pod in rollouts(job) for engine in pod["engines"]]


def wait_rollouts(job: RunningJob, count: int) -> None:
    """Until so many are there, ready, and none leaves."""
    job.wait_for(
        f"{count} rollouts",
        lambda: [pod["ready"] and not pod["draining"] for pod in rollouts(job)] == [True] * count,
    )


def test_rollouts_follow_the_actor_up_and_down_without_a_restart(tmp_path: Path) -> None:
    manifest = make_manifest(
        tmp_path,
        rollout={"numRollouts": 1_000_000, "concurrency": 4},
        roles={"reference": {}, "rollout": {"autoscaling": SOON}},
        restartPolicy={"heartbeatTimeoutSeconds": 60, "stallTimeoutSeconds": 300},
    )
    with RunningJob(tmp_path, manifest) as job:
        wait_rollouts(job, 1)
        with Brake(lambda: engines(job)):
            up = job.wait_for_event("ScaledUp")
            assert up["message"].startswith("rollout scales from 1 to 2 replicas (in the last "), up
            wait_rollouts(job, 2)
            assert job.status()["scaling"]["reason"] == "ActorStarved"

        with Brake(lambda: [job.rank_pid("actor")]):
            down = job.wait_for_event("ScaledDown")
            wait_rollouts(job, 1)
            job.wait_for_step(job.step() + 5)
            assert job.status()["scaling"]["desired"] == 1
        assert down["message"].startswith("rollout scales from 2 to 1 replicas: rollout-1 drains (in the last "), down
        job.assert_epoch(1)

        job.interrupt()
