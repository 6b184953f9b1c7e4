"""What a job does by the values of a metric: it ends at stopWhen, and keeps the best checkpoint, over kills too."""

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_cli.jobs.sample_log import audit_run

from .job import RunningJob, kill, make_manifest, make_simulated

REWARD = """
import time
from pathlib import Path

def as_given(answers):
    time.sleep(0.1)
    return [float(Path(__file__).with_name("reward").read_text())] * len(answers)
"""


def judge(folder: Path, reward: float) -> None:
    """Every answer that is scored from now on gets it."""
    (folder / "reward.new").write_text(str(reward))
    (folder / "reward.new").rename(folder / "reward")


def judged_job(folder: Path, rollouts: int, **changes: dict[str, Any]) -> dict[str, Any]:
    (folder / "as_given.py").write_text(REWARD)
    reward = {"custom": {"function": "as_given:as_given", "path": str(folder)}}
    return make_simulated(folder, rollout={"numRollouts": rollouts, "reward": reward}, **changes)


def standing(job: RunningJob) -> dict[int, float]:
    """The reward of every step, of those that a restart has repeated the last one."""
    return {line["step"]: line["reward"] for line in job.metrics()}


def result(job: RunningJob) -> str:
    return job.output().splitlines()[-1]


def test_a_job_ends_at_a_reward_over_a_kill_and_goes_on_without_that(tmp_path: Path) -> None:
    stop = {"metric": "reward", "above": 0.9, "forSteps": 4}
    judge(tmp_path, 0.0)
    with RunningJob(tmp_path, judged_job(tmp_path, 500, stopWhen=stop, checkpoint={"everySteps": 3})) as job:
        job.wait_for_step(2)
        judge(tmp_path, 1.0)
        job.wait_for("two steps above the bound", lambda: sum(one > 0.9 for one in standing(job).values()) >= 2)
        kill(job.rank_pid("actor"))
        assert job.finish() == 0, job.stated()
        rewards = standing(job)
        assert job.epoch() == 2
        first = next(step for step in rewards if all(rewards.get(step - back, 0.0) > 0.9 for back in range(4)))
        assert list(rewards) == sorted(rewards) == list(range(first + 1))
        assert audit_run(job.out, job.manifest.spec, steps=first + 1).problems == []
        status = job.status()
        assert (status["phase"], status["reason"]) == ("Succeeded", "StopConditionMet")
        assert status["training"]["checkpoint"] == first + 1
        message = (
            "stopWhen holds: reward was above 0.9 in 4 steps in a row (... 1, 1, 1), the last one that of step"
            f" {first}; version {first + 1} is recorded"
        )
        assert job.events()[-1]["message"] == message
        job.wait_gone()

        job.start()
        assert job.finish() == 0
        assert f"an earlier run in this folder ended by spec.stopWhen: {message}. Change or remove spec.stopWhen" in (
            job.output()
        )
        assert job.epoch() == 2

        job.rewrite(judged_job(tmp_path, first + 4))
        job.start()
        job.assert_succeeded()


def checkpoints(job: RunningJob) -> dict[int, str]:
    """Recorded folders by version."""
    marks = (job.out / "checkpoints").glob("*-e*/RECORDED")
    return {int(mark.parent.name.split("-")[0]): mark.parent.name for mark in marks}


@pytest.mark.long
def test_the_best_checkpoint_outlives_a_kill(tmp_path: Path) -> None:
    judge(tmp_path, 0.25)
    saved = {"everySteps": 1, "keep": 1, "keepBest": {"metric": "reward"}}
    with RunningJob(tmp_path, judged_job(tmp_path, 500, checkpoint=saved)) as job:
        job.wait_for_step(2)
        judge(tmp_path, 0.75)
        job.wait_for("a better step", lambda: 0.75 in standing(job).values())
        judge(tmp_path, 0.5)
        job.wait_for("three worse steps", lambda: [*standing(job).values()][-3:] == [0.5] * 3)
        best = max(standing(job).values())
        version = next(step for step, reward in standing(job).items() if reward == best) + 1
        kill(job.process.pid)
        job.process.wait(240)
        job.wait_gone()
        steps = len(standing(job))
        job.rewrite(judged_job(tmp_path, steps + 3, checkpoint=saved))
        job.start()
        job.assert_succeeded()
        folders = checkpoints(job)
        assert sorted(folders) == [version, steps + 3]
        named = json.loads((job.out / "checkpoints" / "best.json").read_bytes())
        assert named == {
            "version": version,
            "folder": folders[version],
            "metric": "reward",
            "mode": "Max",
            "value": best,
        }


def test_an_evaluation_ends_a_job_with_the_version_that_it_is_of(tmp_path: Path) -> None:
    """Saved for that, though no interval asks for it."""
    prompts = "".join(json.dumps({"prompt": f"{n:02d}=", "label": f"{n:02d}"}) + "\n" for n in range(4))
    (tmp_path / "set.jsonl").write_text(prompts)
    sets = [{"name": "held-out", "data": {"prompts": str(tmp_path / "set.jsonl")}, "samplesPerPrompt": 2}]
    metric = "eval/held-out/mean@2"
    manifest = make_manifest(
        tmp_path,
        evaluation={"sets": sets, "everySteps": 2},
        stopWhen={"metric": metric, "above": -1, "forSteps": 2},
        checkpoint={"everySteps": 100, "keep": 1, "keepBest": {"metric": metric, "mode": "Min"}},
        roles={"advantages": None, "actorFwd": None},
    )
    with RunningJob(tmp_path, manifest) as job:
        assert job.finish() == 0, job.stated()
        values = {
            line["version"]: line[metric]
            for line in map(json.loads, (job.out / "evaluations.jsonl").read_text().splitlines())
        }
        assert list(values) == [2, 4]
        assert job.status()["reason"] == "StopConditionMet"
        assert list(standing(job)) == [0, 1, 2, 3]
        best = min(values, key=lambda one: values[one])
        assert sorted(checkpoints(job)) == sorted({best, 4})
        assert json.loads((job.out / "checkpoints" / "best.json").read_bytes())["version"] == best
        assert audit_run(job.out, job.manifest.spec, steps=4).problems == []
