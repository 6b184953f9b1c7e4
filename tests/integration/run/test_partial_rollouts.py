"""Groups that are interrupted go on behind what was generated of them: all is trained once, and less is generated."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from .job import RunningJob, kill, make_simulated

MAX_NEW_TOKENS = 80
SECONDS_PER_TOKEN = 0.05
"""Answers take seconds, on any machine: a simulated engine sleeps."""


def make_job(folder: Path) -> dict[str, Any]:
    """Answers that are as long as they may be, nearly all of them, and are saved every second."""
    manifest = make_simulated(
        folder,
        rollout={
            "numRollouts": 3,
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
