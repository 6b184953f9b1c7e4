"""Interrupting, finishing and going on, also with a manifest that changed where it may."""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from .job import RunningJob, at_leisure, kill, make_simulated, stop


def stopped(job: RunningJob, step: int) -> None:
    """Trains up to `step`, then SIGKILLs the run, so that rows stay in the queue."""
    job.wait_for_step(step)
    kill(job.process.pid)
    job.process.wait(240)
    job.wait_gone()


def test_a_finished_run_goes_on_when_it_is_given_more_rollouts(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_simulated(tmp_path, rollout={"numRollouts": 10})) as job:
        job.assert_succeeded()
        job.rewrite(make_simulated(tmp_path, rollout={"numRollouts": 16}))
        assert [event for event in job.events() if event["reason"] == "InputChanged"] == []
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text(prompts.read_text().replace('"label": "99"', '"label": "98"'))
        job.start()
        job.assert_succeeded()
        (input_changed,) = [event["message"] for event in job.events() if event["reason"] == "InputChanged"]
        assert input_changed.startswith(
            f"spec.data.prompts: {prompts} is not what this run has read before (prompts.jsonl: other content)."
        )
        assert sorted(line["step"] for line in job.metrics()) == list(range(16))
        (changed,) = [event["message"] for event in job.events() if event["reason"] == "SpecChanged"]
        assert changed == "spec.rollout.numRollouts: 10 -> 16; the manifest of before is kept as job.1.json"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"transferQueue": {"storageUnits": 1}}, id="a storage unit less", marks=pytest.mark.long),
        pytest.param({"transferQueue": {"storageUnits": 3}}, id="a storage unit more", marks=pytest.mark.long),
        pytest.param({"rollout": {"maxStaleness": 3}}, id="more staleness", marks=pytest.mark.long),
        pytest.param({"training": {"globalBatchSize": 16}}, id="two optimizer steps", marks=pytest.mark.long),
    ],
)
def test_a_resumed_run_may_differ(tmp_path: Path, changes: dict[str, Any]) -> None:
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path), tmp_path)) as job:
        stopped(job, 5)
        job.rewrite(at_leisure(make_simulated(tmp_path, **changes), tmp_path))
        job.start()
        job.assert_succeeded()


def test_a_run_whose_newest_checkpoint_was_damaged_goes_on_from_the_one_before(tmp_path: Path) -> None:
    """Uncounted, with every sample trained once: the rows in between are gone, and their prompts are drawn again."""
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path, checkpoint={"keep": 3}), tmp_path)) as job:
        stopped(job, 5)
        checkpoints = job.out / "checkpoints"
        record = json.loads((checkpoints / "record.json").read_bytes())
        damaged = checkpoints / record["folder"] / "actor-00000.safetensors"
        os.truncate(damaged, damaged.stat().st_size - 1)
        changes = {"transferQueue": {"storageUnits": 1}, "restartPolicy": {"maxGlobalRestarts": 0}}
        job.rewrite(at_leisure(make_simulated(tmp_path, checkpoint={"keep": 3}, **changes), tmp_path))
        job.start()
        report = job.assert_succeeded()
        assert (report.epochs, report.voided > 0) == (2, True)  # of epoch 2 nothing was trained
        reported = [event["message"] for event in job.events() if event["reason"] == "CheckpointDamaged"]
        assert all(f"{damaged} has checksum" in message for message in reported)
        assert len(reported) == 2, reported
        assert (checkpoints / f"{record['folder']}.damaged" / damaged.name).exists()
        (opened,) = [event["message"] for event in job.events() if event["message"].startswith("epoch 3 is open")]
        assert f"from version {record['id']['version'] - 2}," in opened


@pytest.mark.long
@pytest.mark.parametrize("first", [True, False], ids=["roles go", "roles come"])
def test_a_resumed_run_may_have_a_role_that_no_job_needs_or_not(tmp_path: Path, first: bool) -> None:
    def manifest(*, has_them: bool) -> dict[str, Any]:
        made = at_leisure(make_simulated(tmp_path), tmp_path)
        if not has_them:
            made["spec"]["roles"] |= {"reference": None, "actorFwd": None, "advantages": None}
            made["spec"]["algorithm"] = {}
        return made

    with RunningJob(tmp_path, manifest(has_them=first)) as job:
        stopped(job, 5)
        job.rewrite(manifest(has_them=not first))
        job.start()
        job.assert_succeeded()


def test_another_interval_of_the_reference_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path), tmp_path)) as job:
        stopped(job, 3)
        job.rewrite(at_leisure(make_simulated(tmp_path, training={"refUpdateInterval": 4}), tmp_path))
        job.start()
        assert job.finish() == 64
        assert "spec.training.refUpdateInterval: 4 differs from None" in job.output()
        assert "rows are measured against a version that this interval chose" in job.output()


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.long), 2])
def test_an_interrupted_actor_saves_what_it_has_published(tmp_path: Path, replicas: int) -> None:
    """Also where one of two ranks learns of the interruption much later than the other: together they go or stay."""
    manifest = make_simulated(
        tmp_path,
        rollout={"numRollouts": 2000, "batchSize": 32, "maxStaleness": 0, "sampling": {"maxNewTokens": 60}},
        roles={"reference": {}, "actor": {"replicas": replicas}},
        checkpoint={"everySteps": 1000},
        training={"globalBatchSize": 64, "microBatchSize": 8},
    )
    with RunningJob(tmp_path, manifest) as job:
        job.wait_for_step(6)
        launcher, rank = int(job.pod("actor")["launcherPid"]), job.rank_pid("actor")
        stop(launcher)
        job.process.send_signal(signal.SIGINT)
        job.wait_for("the end of actor-0.0", lambda: rank not in job.processes())
        os.kill(launcher, signal.SIGCONT)
        job.wait_interrupted()
        assert job.status()["training"]["checkpoint"] == job.metrics()[-1]["step"] + 1 >= 7


@pytest.mark.long
def test_two_ranks_that_are_interrupted_again_and_again_leave_together_and_save(tmp_path: Path) -> None:
    """At moments that have nothing to do with their steps: each time what was published last is what is saved."""
    manifest = make_simulated(
        tmp_path,
        rollout={"numRollouts": 2000, "batchSize": 16},
        roles={"reference": {}, "actor": {"replicas": 2}},
        checkpoint={"everySteps": 1000},
        training={"globalBatchSize": 32, "microBatchSize": 8},
    )
    chance = random.Random(0)
    with RunningJob(tmp_path, manifest) as job:
        for _ in range(3):
            trained = job.step()
            job.wait_for_step(trained + chance.randrange(1, 8))
            time.sleep(chance.uniform(0, 0.2))
            job.interrupt()
            assert job.status()["training"]["checkpoint"] == job.metrics()[-1]["step"] + 1 > trained + 1
            job.start()
        job.wait_for_step(job.step() + 1)
