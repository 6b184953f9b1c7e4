"""Answers that take several times `stallTimeoutSeconds`: each is made once, and nothing takes it for a standstill."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.brakes import Brake

from .job import RunningJob, make_manifest

STALL_SECONDS = 8
RUNS_SECONDS, STOPS_SECONDS = 0.06, 1.0
"""Of a throttled engine, in turns."""
THROTTLED_SECONDS = 3 * STALL_SECONDS
"""Then it runs freely: an answer that is still being made has lasted long enough, however fast the machine is."""


def throttled_engine(job: RunningJob) -> Brake:
    """Stops the engine of rollout-0 again and again, as a machine does that has too much to do."""

    def pids() -> list[int]:
        with suppress(KeyError, TypeError):
            return [job.pod("rollout")["enginePid"]]
        return []

    return Brake(pids, run_seconds=RUNS_SECONDS, stop_seconds=STOPS_SECONDS, at_most_seconds=THROTTLED_SECONDS)


def generations(job: RunningJob) -> list[dict[str, Any]]:
    """What was asked of the engine until it was answered, in order: `{r, groups, seconds}`."""
    files = sorted((job.out / "timeline").glob("rollout-*"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    spans = [event for event in map(json.loads, lines) if event["name"] == "generate"]
    return [{**span["args"], "seconds": span["dur"] / 1e6} for span in spans]


@pytest.mark.parametrize("num_tokens", [500, pytest.param(8000, marks=pytest.mark.long)])
def test_no_answer_is_begun_twice_however_long_it_takes(tmp_path: Path, num_tokens: int) -> None:
    manifest = make_manifest(
        tmp_path,
        rollout={
            "numRollouts": 2,
            "batchSize": 1,
            "samplesPerPrompt": 4,
            "maxStaleness": 0,
            "sampling": {"maxNewTokens": num_tokens},
        },
        training={"globalBatchSize": 4, "microBatchSize": 1},
        restartPolicy={"heartbeatTimeoutSeconds": STALL_SECONDS - 1, "stallTimeoutSeconds": STALL_SECONDS},
    )
    # So many tokens that the one that ends an answer seldom comes.
    manifest["spec"]["model"]["config"] |= {"maxPositionEmbeddings": num_tokens + 48, "vocabSize": 4000}
    with RunningJob(tmp_path, manifest) as job:
        job.wait_for("the first weights", lambda: job.status().get("phase") == "Running")
        with throttled_engine(job):
            job.assert_succeeded()
        found = generations(job)
        assert [one["r"] for one in found] == [0, 1], "an answer was begun twice"
        assert max(one["seconds"] for one in found) > 2 * STALL_SECONDS, "the answers were not long enough to tell"
        job.assert_epoch(1)
