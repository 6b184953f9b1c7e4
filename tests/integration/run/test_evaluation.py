"""Evaluation during training: kills within it change nothing that it finds, and training gets none of its samples.

A checkpoint that is evaluated by itself has the scores of its version.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .job import RunningJob, kill, make_manifest

REWARD = """
import threading
import time
from pathlib import Path

ONE_AT_A_TIME = threading.Lock()

def score(answers):
    for answer in answers:
        if "slow" in answer.row:
            if answer.prompt == "07=" and answer.index == 1 and not FAILED.exists():
                FAILED.touch()
                raise OSError("away")
            with ONE_AT_A_TIME:
                time.sleep(0.02)
            with open(CALLS, "a") as calls:
                calls.write(answer.prompt + "\\n")
    return [float(answer.response[:1] == answer.label[:1]) for answer in answers]
"""
PROMPTS, SAMPLES = 40, 4


def failed(folder: Path) -> Path:
    """There once a call for an answer of a set has failed, the only one."""
    return folder / "failed"


def evaluated_job(folder: Path) -> dict[str, Any]:
    """Strictly on-policy and of one step per rollout: two runs of it train alike."""
    folder.mkdir()
    files = f"CALLS, FAILED = {str(folder / 'calls')!r}, Path({str(failed(folder))!r})"
    (folder / "slow.py").write_text(REWARD.replace("\ndef ", f"\n{files}\n\ndef ", 1))
    lines = [{"prompt": f"{n:02d}=", "label": f"{n:02d}", "slow": 1, "kind": "ab"[n % 2]} for n in range(PROMPTS)]
    (folder / "set.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reward = {"custom": {"function": "slow:score", "path": str(folder)}, "onFailure": {"backoffSeconds": 0.01}}
    data = {"prompts": str(folder / "set.jsonl"), "sourceKey": "kind"}
    greedy = {"temperature": 0, "maxNewTokens": 3}
    sets = [
        {"name": "sampled", "data": data, "samplesPerPrompt": SAMPLES},
        {"name": "greedy", "data": data, "sampling": greedy},
    ]
    return make_manifest(
        folder,
        rollout={"numRollouts": 3, "maxStaleness": 0, "reward": reward},
        evaluation={"sets": sets, "everySteps": 2, "atStart": True},
        training={"optimizer": {"learningRate": 1e-2}},
        checkpoint={"everySteps": 1},
        roles={"advantages": None, "actorFwd": None},
    )


def evaluations(job: RunningJob) -> dict[int, dict[str, float]]:
    """By version; the last line of each counts."""
    lines = [json.loads(line) for line in (job.out / "evaluations.jsonl").read_text().splitlines()]
    return {line["version"]: {name: value for name, value in line.items() if "eval/" in name} for line in lines}


def scored(folder: Path) -> int:
    calls = folder / "calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def undisturbed(folder: Path) -> dict[int, dict[str, float]]:
    with RunningJob(folder, evaluated_job(folder)) as job:
        job.assert_succeeded(epochs=1)
        assert len(evaluated_events(job)) == 3
        last = job.metrics()[-1]
        assert (last.get("evaluation_reward_retries"), last.get("reward_retries")) == (1, None)
        return evaluations(job)


def evaluate(folder: Path, checkpoint: Path, *options: str) -> dict[str, Any]:
    """What `rljob evaluate` prints."""
    command = [sys.executable, "-m", "rljob_cli", "evaluate", str(folder / "job.yaml"), "--output", "json", *options]
    done = subprocess.run(
        [*command, "--checkpoint", str(checkpoint)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def evaluated_events(job: RunningJob) -> list[str]:
    return [event["message"] for event in job.events() if event["reason"] == "Evaluated"]


def test_versions_are_evaluated_and_training_gets_none_of_their_samples(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    by_version = undisturbed(plain)
    assert list(by_version) == [0, 2, 3]
    assert scored(plain) == 3 * PROMPTS * (SAMPLES + 1)
    for found in by_version.values():
        assert found["eval/sampled/samples"] == PROMPTS * SAMPLES
        assert found["eval/greedy/b/samples"] == PROMPTS / 2
    assert by_version[0] != by_version[2] != by_version[3]
    # Its checkpoint by itself: the same to the last digit.
    file = plain / "alone.jsonl"
    failed(plain).unlink()
    alone = evaluate(plain, plain / "out", "--out", str(file))
    assert (alone["version"], alone["samples"]) == (3, PROMPTS * (SAMPLES + 1))
    assert alone["metrics"] == by_version[3]
    assert alone["rewardRetries"] == 1
    (line,) = map(json.loads, file.read_text().splitlines())
    assert {name: value for name, value in line.items() if "eval/" in name} == by_version[3]
    assert (line["version"], line["checkpoint"]) == (3, alone["folder"])


@pytest.mark.long
def test_kills_within_an_evaluation_change_nothing_that_it_finds(tmp_path: Path) -> None:
    expected, struck = undisturbed(tmp_path / "plain"), tmp_path / "struck"
    with RunningJob(struck, evaluated_job(struck)) as job:
        job.wait_for("some scores", lambda: scored(struck) >= 20)
        kill(job.infrastructure_pid("coordinator"))
        job.wait_for("more scores", lambda: scored(struck) >= 50)
        kill(int(job.pod("rollout")["enginePid"]))
        job.wait_for("more scores", lambda: scored(struck) >= 90)
        kill(job.rank_pid("rollout"))
        job.wait_for("the next epoch", lambda: job.epoch() == 2 and job.ready())
        assert not evaluated_events(job)
        job.wait_for("the first result", lambda: len(evaluated_events(job)) == 1)
        before = scored(struck)
        job.wait_for("some scores of version 2", lambda: scored(struck) >= before + 40)
        kill(job.rank_pid("actor"))
        job.wait_for("the next epoch", lambda: job.epoch() == 3)
        assert len(evaluated_events(job)) == 1
        job.assert_succeeded(epochs=3)
        assert evaluations(job) == expected
