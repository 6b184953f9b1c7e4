"""Seconds from SIGKILL of a rank to the coordinator's word that every role is ready again, over many kills.

    make bench-restart       or       python -m tests.bench.restart --kills 20

A tiny model on this machine: what is measured is the product's own share (death seen, decided, persisted, reported,
forked, restored), not the loading of weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from tests.integration.run.job import RunningJob, kill, make_manifest

CASES = (("reference", "InPlace"), ("advantages", "InPlace"), ("actor", "Global"), ("rollout", "Global"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as name:
        folder = Path(name)
        manifest = make_manifest(
            folder,
            rollout={"numRollouts": 100_000},
            restartPolicy={"threshold": 1000, "maxGlobalRestarts": 10_000, "backoff": {"initialSeconds": 0}},
            telemetry={"sampleLog": False},
        )
        with RunningJob(folder, manifest) as job:
            job.wait_for_step(5, 120)
            for role, scope in CASES:
                _report(role, scope, [_one(job, role) for _ in range(arguments.kills)])


def _one(job: RunningJob, role: str) -> float:
    job.wait_for("every role to be ready", job.ready, 120)
    time.sleep(0.3)  # not in the middle of the last restart's echo
    killed = time.time()
    kill(job.rank_pid(role))
    ready: list[float] = []

    def is_ready() -> bool:
        ready[:] = [at for at in map(_ready_at, job.events()) if at is not None and at > killed]
        return bool(ready)

    job.wait_for("the job to be ready again", is_ready, 120)
    return ready[0] - killed


def _ready_at(event: dict[str, str]) -> float | None:
    return datetime.fromisoformat(event["time"]).timestamp() if event["reason"] == "Ready" else None


def _report(role: str, scope: str, seconds: list[float]) -> None:
    row = {
        "role": role,
        "scope": scope,
        "kills": len(seconds),
        "median_s": round(statistics.median(seconds), 3),
        "p90_s": round(sorted(seconds)[int(0.9 * (len(seconds) - 1))], 3),
        "max_s": round(max(seconds), 3),
    }
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
