"""Ctrl-C while a version is evaluated: the job is saved at once, and the next run finishes the evaluation."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .job import RunningJob, make_manifest

REWARD = """
import time

def score(answers):
    scored = [answer.prompt for answer in answers if "scored" in answer.row]
    time.sleep(0.5 * len(scored))
    with open(CALLS, "a") as calls:
        calls.write("".join(prompt + "\\n" for prompt in scored))
    return [float(answer.response[:1] == answer.label[:1]) for answer in answers]
"""
PROMPTS, SAMPLES = 30, 2
EVALUATED = (0, 2, 3)


def slow_job(folder: Path) -> dict[str, Any]:
    """An evaluation keeps the engine for seconds, a rollout for a moment; two runs of it train alike."""
    folder.mkdir()
    (folder / "counting.py").write_text(f"CALLS = {str(folder / 'calls')!r}\n{REWARD}")
    lines = [{"prompt": f"{n:02d}=", "label": f"{n:02d}", "scored": 1} for n in range(PROMPTS)]
    (folder / "set.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = {"prompts": str(folder / "set.jsonl")}
    return make_manifest(
        folder,
        rollout={
            "numRollouts": 3,
            "maxStaleness": 0,
            "reward": {"custom": {"function": "counting:score", "path": str(folder)}},
        },
        evaluation={
            "sets": [{"name": "slow", "data": data, "samplesPerPrompt": SAMPLES}],
            "everySteps": 2,
            "atStart": True,
        },
        training={"optimizer": {"learningRate": 1e-2}},
        checkpoint={"everySteps": 10},
        roles={"advantages": None, "actorFwd": None},
    )


def scored(folder: Path) -> int:
    calls = folder / "calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def found(job: RunningJob) -> dict[int, dict[str, float]]:
    """The figures of each version that was evaluated; none is there twice."""
    lines = [json.loads(line) for line in (job.out / "evaluations.jsonl").read_text().splitlines()]
    assert [line["version"] for line in lines] == list(EVALUATED)
    return {line["version"]: {name: value for name, value in line.items() if "eval/" in name} for line in lines}


def evaluated(job: RunningJob) -> int:
    return sum(event["reason"] == "Evaluated" for event in job.events())


def _is_evaluated(job: RunningJob, times: int) -> bool:
    return evaluated(job) == times


def _is_scored(folder: Path, number: int) -> bool:
    return scored(folder) >= number


@pytest.mark.long  # tests/unit/training/test_loop.py has the wait, test_evaluation.py what is evaluated
def test_an_evaluation_that_a_drain_ends_is_finished_by_the_next_run(tmp_path: Path) -> None:
    plain, struck = tmp_path / "plain", tmp_path / "struck"
    with RunningJob(plain, slow_job(plain)) as job:
        job.assert_succeeded(epochs=1)
        expected = found(job)
        assert all(figures["eval/slow/samples"] == PROMPTS * SAMPLES for figures in expected.values())
    with RunningJob(struck, slow_job(struck)) as job:
        for number, version in enumerate(EVALUATED):
            job.wait_for("the evaluations before", partial(_is_evaluated, job, number))
            before = scored(struck)
            job.wait_for("some scores", partial(_is_scored, struck, before + 6))
            job.interrupt()
            assert evaluated(job) == number
            assert job.status()["training"]["checkpoint"] == version
            unfinished = [event["message"] for event in job.events() if event["reason"] == "EvaluationUnfinished"]
            assert len(unfinished) == number + 1
            assert unfinished[-1].startswith(f"actor-0.0: The evaluation of version {version} is not finished: slow ")
            assert f" of {PROMPTS * SAMPLES} samples are scored" in unfinished[-1]
            assert [line["step"] for line in job.metrics()] == list(range(version))
            job.start()
        job.assert_succeeded()
        assert found(job) == expected
        assert [line["step"] for line in job.metrics()] == [0, 1, 2]
        assert scored(struck) < 2 * PROMPTS * SAMPLES * len(EVALUATED)  # what was scored stands
