"""Groups that are interrupted go on behind what was generated of them: all is trained once, and less is generated."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rljob_cli.jobs.sample_log import audit_run

from .job import RunningJob, kill, make_simulated, stop

MAX_NEW_TOKENS = 80
SECONDS_PER_TOKEN = 0.05
"""Answers take seconds, on any machine: a simulated engine sleeps."""


def make_job(folder: Path) -> dict[str, Any]:
    """Answers that are as long as they may be, nearly all of them, and are saved every second."""
    manifest = make_simulated(
        folder,
        rollout={
            "numRollouts": 8,
            "batchSize": 2,
            "sampling": {"maxNewTokens": MAX_NEW_TOKENS},
            "partial": {"saveSeconds": 1},
        },
        training={"globalBatchSize": 8, "microBatchSize": 4},
        algorithm={"kl": {"coefficient": 0.0}},
        roles={"reference": None, "actorFwd": None, "advantages": None},
        checkpoint={"everySteps": 1},
        simulation={"generation": {"secondsPerToken": SECONDS_PER_TOKEN}},
    )
    manifest["spec"]["model"]["config"] |= {"maxPositionEmbeddings": MAX_NEW_TOKENS + 48, "vocabSize": 4000}
    return manifest


def saved(job: RunningJob) -> int:
    """Groups of which something is saved."""
    with job.control() as control:
        return int(control.hlen("q:partials"))


def carried(job: RunningJob) -> float:
    """Tokens, as the rollout's rank that lives counts them."""
    endpoints = json.loads((job.out / "endpoints.json").read_bytes())
    with urllib.request.urlopen(f"{endpoints['coordinator']}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("rljob_rank_tokens_carried_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def test_a_killed_rank_and_a_killed_engine_cost_what_was_not_saved(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_job(tmp_path)) as job:
        job.wait_for("the first weights", lambda: job.status().get("phase") == "Running")
        job.wait_for("something saved", lambda: saved(job) > 0)
        kill(job.rank_pid("rollout"))
        job.wait_for_event("RankExited", role="rollout")
        job.wait_for("tokens that were carried", lambda: carried(job) > 0)
        before = carried(job)
        job.wait_for_step(0)
        job.wait_for("something saved again", lambda: saved(job) > 0)
        kill(int(job.pod("rollout")["enginePid"]))
        job.wait_for("tokens that the engine's death did not cost", lambda: carried(job) > before)
        job.assert_succeeded()


AHEAD = """
import time
from pathlib import Path

def all_of_them(sample):
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and Path(__file__).with_name("slow").exists():
        time.sleep(0.02)
    return True
"""
STEP_SECONDS = 8.0
"""Of the actor, once it is slow: the rollouts, whose answers take half of it, then stand idle for most of the time."""


@pytest.mark.long
def test_what_a_replica_was_generating_when_it_was_scaled_down_is_carried_on_by_another(tmp_path: Path) -> None:
    manifest = make_job(tmp_path)
    spec = manifest["spec"]
    # Two groups at once: each of two replicas has some of the three that a step makes room for.
    spec["rollout"] |= {"numRollouts": 1000, "batchSize": 3, "concurrency": 8}
    spec["training"] |= {"globalBatchSize": 12}
    spec["algorithm"] |= {"sampleFilter": "ahead:all_of_them", "path": str(tmp_path)}
    bounds = {"minReplicas": 1, "maxReplicas": 2, "scaleUpAfterSeconds": 10, "scaleDownAfterSeconds": 10}
    spec["roles"]["rollout"]["autoscaling"] = bounds
    (tmp_path / "ahead.py").write_text(AHEAD.replace("SECONDS", f"{STEP_SECONDS / 12}"))
    with RunningJob(tmp_path, manifest) as job:
        job.wait_for_event("ScaledUp")
        (tmp_path / "slow").touch()
        while not any(event["reason"] == "ScaledDown" for event in job.events()):
            # Steps end while rollouts are idle. That it is time to scale is found while all three groups are in work.
            stop(job.process.pid)
            job.wait_for("answers of three groups", lambda: saved(job) >= 3)
            assert carried(job) == 0
            os.kill(job.process.pid, signal.SIGCONT)
            job.wait_for("the end of an answer", lambda: saved(job) < 3)
        job.wait_for("tokens of the replica that went", lambda: carried(job) > 0)
        (tmp_path / "slow").unlink()
        job.wait_for_step(job.step() + 2)
        job.assert_epoch(1)
        job.interrupt()
        assert audit_run(job.out, job.manifest.spec, steps=job.step() + 1).problems == []
