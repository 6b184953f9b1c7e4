"""Answers that take several times `stallTimeoutSeconds`: each is made once, and nothing takes it for a stall."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.brakes import Brake

from .job import RunningJob, make_manifest

STALL_SECONDS = 8
RUNS_SECONDS, STOPS_SECONDS = 0.06, 1.0
"""Of a throttled engine, in turns."""
THROTTLED_SECONDS = 3 * STALL_SECONDS
"""Then it runs freely: it makes so few of 8000 tokens until then that the first answers last longer on any machine."""
SIMULATED_TOKENS = 500
SIMULATED_SECONDS = 2.5 * STALL_SECONDS
"""Of an answer of a simulated engine, at least: it sleeps between two tokens, however fast the machine is."""


def throttled_engine(job: RunningJob) -> Brake:
    """Stops the engine of rollout-0 again and again, as a machine does that has too much to do."""

    def pids() -> list[int]:
        with suppress(KeyError, TypeError):
            return [job.pod("rollout")["enginePid"]]
        return []

    return Brake(pids, run_seconds=RUNS_SECONDS, stop_seconds=STOPS_SECONDS, at_most_seconds=THROTTLED_SECONDS)


def slow_by_itself(job: RunningJob) -> AbstractContextManager[object]:
    """Nothing is done to a simulated engine, which takes its time."""
    return nullcontext(job)


def simulated(manifest: dict[str, Any]) -> dict[str, Any]:
    """The same job with engines that compute nothing, and take their time for each token."""
    roles = {**manifest["spec"]["roles"], "rollout": {"engine": {"kind": "Sim"}}}
    pace = {"generation": {"secondsPerToken": SIMULATED_SECONDS / SIMULATED_TOKENS}}
    return {**manifest, "spec": {**manifest["spec"], "roles": roles, "simulation": pace}}


def generations(job: RunningJob) -> list[dict[str, Any]]:
    """What was asked of the engine until it was answered, in order: `{r, groups, seconds}`."""
    files = sorted((job.out / "timeline").glob("rollout-*"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    spans = [event for event in map(json.loads, lines) if event["name"] == "generate"]
    return [{**span["args"], "seconds": span["dur"] / 1e6} for span in spans]


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_rollouts", "num_tokens", "made", "engine"),
    [
        pytest.param(1, SIMULATED_TOKENS, simulated, slow_by_itself, id="a simulated engine"),
        pytest.param(2, 8000, dict, throttled_engine, id="a throttled engine"),
    ],
)
def test_no_answer_is_begun_twice_however_long_it_takes(
    tmp_path: Path,
    num_rollouts: int,
    num_tokens: int,
    made: Callable[[dict[str, Any]], dict[str, Any]],
    engine: Callable[[RunningJob], AbstractContextManager[object]],
) -> None:
    manifest = make_manifest(
        tmp_path,
        rollout={
            "numRollouts": num_rollouts,
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
    with RunningJob(tmp_path, made(manifest)) as job:
        job.wait_for("the first weights", lambda: job.status().get("phase") == "Running")
        with engine(job):
            job.assert_succeeded()
        found = generations(job)
        assert [one["r"] for one in found] == list(range(num_rollouts)), "an answer was begun twice"
        assert max(one["seconds"] for one in found) > 2 * STALL_SECONDS, "the answers were not long enough to tell"
        job.assert_epoch(1)
