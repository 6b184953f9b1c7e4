"""Six roles: the critic killed and stopped, drained and resumed; one record has both models, and both are audited."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .job import RunningJob, at_leisure, kill, make_manifest, make_simulated, stop


def with_critic(make: Callable[..., dict[str, Any]], folder: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    """A job of all six roles."""
    roles = {"reference": {}, "actorFwd": {}, "critic": {}, **changes.pop("roles", {})}
    algorithm = {"advantage": "Gae", "kl": {"coefficient": 0.001}, **changes.pop("algorithm", {})}
    return make(folder, roles=roles, algorithm=algorithm, **changes)


ALWAYS = {f"critic/{name}" for name in ("loss", "clip_fraction", "grad_norm", "seconds_train", "seconds_values")}
"""Of every step, of what /metrics shows of a critic."""


def folders(job: RunningJob) -> list[Path]:
    """Of recorded checkpoints, oldest first."""
    found = [path.parent for path in (job.out / "checkpoints").glob("*/RECORDED") if not path.parent.is_symlink()]
    return sorted(found, key=lambda path: int(path.name.split("-")[0]))


def assert_whole(job: RunningJob) -> None:
    """Every record has the parts of both models."""
    assert folders(job), job.stated()
    for folder in folders(job):
        assert list(folder.glob("*.safetensors")), f"{folder} has no policy"
        assert list((folder / "critic").glob("*.safetensors")), f"{folder} has no critic"


def test_a_job_of_six_roles_trains_both_models(tmp_path: Path) -> None:
    with RunningJob(tmp_path, with_critic(make_manifest, tmp_path, rollout={"numRollouts": 20})) as job:
        report = job.assert_succeeded()
        assert report.epochs == 1
        assert_whole(job)
        metrics = job.metrics()
        assert len(metrics) == 20
        assert all(line.keys() >= ALWAYS for line in metrics)
        assert any("critic/explained_variance" in line for line in metrics), "of returns that differ"


@pytest.mark.long  # deaths in windows are below, and one of the critic on a cluster
@pytest.mark.parametrize("role", ["critic", "actor"])
def test_a_death_of_either_trainer_restarts_both_from_one_record(tmp_path: Path, role: str) -> None:
    manifest = with_critic(make_simulated, tmp_path, roles={"critic": {"ranksPerPod": 2}})
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        for turn, do in enumerate((kill, stop)):
            job.wait_for("all to be ready", job.ready)
            job.wait_for_step(job.step() + 3)
            epoch = job.epoch()
            do(job.rank_pid(role))
            job.wait_for("the next epoch", lambda before=epoch: job.epoch() == before + 1 and job.ready())  # type: ignore[misc] # bound per turn
            assert job.epoch() == turn + 2
            assert_whole(job)
        job.assert_succeeded(epochs=3)
        assert_whole(job)


WINDOWS = {
    "train.begun": 7,  # all roles begin a rollout, and nothing is computed of it
    "checkpoint.begun": 9,  # begun and nothing written
    "checkpoint.part_written": 16,  # a part written and not yet reported
    "checkpoint.before_record": 9,  # in place and not yet recorded
    "checkpoint.after_record": 11,  # recorded and nothing deleted yet
}
"""A window, and the pass in which a rank of either role dies there."""


def test_a_death_in_a_window_of_a_common_save_leaves_the_record_before(tmp_path: Path) -> None:
    marks = tmp_path / "failpoints"
    marks.mkdir()
    armed = ",".join(f"{name}={count}" for name, count in WINDOWS.items())
    env = {"RLJOB_FAILPOINTS": armed, "RLJOB_FAILPOINTS_DIR": str(marks)}
    restarts = {"maxGlobalRestarts": 100, "threshold": 100}
    manifest = with_critic(
        make_simulated,
        tmp_path,
        roles={"critic": {"ranksPerPod": 2}},
        checkpoint={"everySteps": 1},
        restartPolicy=restarts,
    )
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path, seconds=0.1), env) as job:
        for name in WINDOWS:
            job.wait_for(f"the death in {name}", (marks / f"{name}.fired").exists)
        assert job.assert_succeeded().epochs > len(WINDOWS)
        assert_whole(job)


@pytest.mark.long  # a cluster's suspension takes the same way
def test_an_interrupted_job_saves_both_and_goes_on(tmp_path: Path) -> None:
    manifest = with_critic(make_simulated, tmp_path, checkpoint={"everySteps": 1000})
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        job.wait_for_step(4)
        job.interrupt()
        assert_whole(job)
        saved = int(folders(job)[-1].name.split("-")[0])
        assert saved >= 5, "what was trained is saved"
        job.start()
        job.assert_succeeded(epochs=2)
        first = min(line["step"] for line in job.metrics() if line["epoch"] == 2)
        assert first == saved, "nothing was trained again"
