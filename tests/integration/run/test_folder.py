"""The run folder is one job's and one run's: what a user finds in it, and what a second start there says."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from rljob_operator.local.earlier_run import Earlier
from rljob_operator.local.memory_folders import memory_paths
from rljob_operator.local.run_folder import RunFolder

from .job import RunningJob, at_leisure, kill, make_manifest, make_simulated

DRAW = Path(__file__).parents[3] / "scripts/draw_timeline.py"


def drawn(timeline: Path) -> str:
    command = [sys.executable, str(DRAW), str(timeline), "--first", "0", "--steps", "2"]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout


def test_a_job_trains_to_its_end_and_is_then_finished(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path, rollout={"numRollouts": 5}, telemetry={"sampleLog": False})
    # Nothing is trained before it is Ready: else a job as short as this may be over before its supervisor has looked.
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path, seconds=30), options=["--audit"]) as job:
        job.wait_for_event("Ready")
        job.assert_succeeded()
        assert job.status()["phase"] == "Succeeded"
        assert [line["step"] for line in job.metrics()] == [0, 1, 2, 3, 4]
        assert [event["reason"] for event in job.events()] == ["Started", "EpochOpened", "Ready", "Succeeded"]
        assert len((job.out / "samples.jsonl").read_bytes().splitlines()) == 5 * 32
        assert drawn(job.out / "timeline.json").startswith("<svg ")
        assert not any(path.exists() for path in memory_paths(job.out))

        job.start()
        assert job.finish() == 0
        assert "were trained by an earlier run in this folder" in job.output()


def test_a_full_disk_stops_the_run_with_a_sentence_and_it_goes_on_when_there_is_space(tmp_path: Path) -> None:
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path), tmp_path)) as job:
        job.wait_for_step(3)
        beside = job.out / ".status.json.new"
        job.wait_for("a full disk", lambda: _is_full(beside))
        assert job.finish() == 1
        assert f"{job.out} cannot be written: No space left on device, on /" in job.output()
        assert "Traceback" not in job.output()
        job.wait_gone()
        beside.unlink()
        job.start()
        job.assert_succeeded()


def test_a_folder_that_is_in_use_or_of_another_job_is_refused(tmp_path: Path) -> None:
    endless = make_simulated(tmp_path, rollout={"numRollouts": 10000})
    with RunningJob(tmp_path, endless) as job:
        job.wait_for_step(0)
        first = job.process
        job.start()
        assert job.finish() == 64
        assert f"is in use by `rljob run` (process {first.pid})" in job.output()

        kill(first.pid)
        first.wait(240)
        job.wait_gone()
        job.rewrite(make_simulated(tmp_path, rollout={"samplesPerPrompt": 8}, training={"globalBatchSize": 64}))
        job.start()
        assert job.finish() == 64
        assert "spec.rollout.samplesPerPrompt: 8 differs from 4" in job.output()


def test_an_interrupted_run_states_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_simulated(tmp_path, rollout={"numRollouts": 10000})) as job:
        job.wait_for_step(2)
        epoch = job.epoch()
        job.interrupt()
        assert "resume with: rljob run" in job.output()
        assert job.status()["phase"] == "Interrupted"
        assert not any(path.exists() for path in memory_paths(job.out))

        done = job.status()["training"]["checkpoint"]
        job.rewrite(make_simulated(tmp_path, rollout={"numRollouts": done + 3}))
        job.start()
        job.assert_succeeded()
        job.assert_epoch(epoch + 1)
        assert job.status()["training"]["checkpoint"] == done + 3


def test_a_run_that_was_retained_goes_on_with_its_own_checkpoints(tmp_path: Path) -> None:
    def manifest(rollouts: int, folder: str) -> dict[str, Any]:
        where = {"path": str(tmp_path / folder)}
        return make_simulated(tmp_path, rollout={"numRollouts": rollouts}, checkpoint=where)

    with RunningJob(tmp_path, manifest(3, "saved")) as job:
        job.assert_succeeded()
        fresh = RunFolder.open(job.out, fresh=True)
        fresh.start_over(job.manifest, Earlier.RETAINED)
        fresh.begin(job.manifest)
        fresh.close()
        job.out = tmp_path / "out.1"
        job.rewrite(manifest(5, "saved.1"))
        job.start()
        job.assert_succeeded()
        assert [line["step"] for line in job.metrics()] == [0, 1, 2, 3, 4]
    assert (tmp_path / "saved.1/latest").readlink().name.startswith("5-e")
    assert not list((tmp_path / "saved").glob("*-e*"))


def _is_full(beside: Path) -> bool:
    """Whether what is written to this path next finds no space; not while something is written there."""
    try:
        beside.symlink_to("/dev/full")
    except FileExistsError:
        return False
    return True
