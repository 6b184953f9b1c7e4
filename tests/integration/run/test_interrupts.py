"""Ctrl-C at any moment: the command ends by itself, says how to resume, and leaves no process behind."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from .job import RunningJob, at_leisure, kill, make_simulated


def _the_folder_is_reported(job: RunningJob) -> None:
    job.wait_for("the first line", lambda: "files are in" in job.output())


def _endpoints_are_written(job: RunningJob) -> None:
    job.wait_for("endpoints.json", (job.out / "endpoints.json").exists)


def _coordinator_runs(job: RunningJob) -> None:
    job.wait_for("the coordinator", lambda: bool(job.status().get("infrastructure")))


def _pods_start(job: RunningJob) -> None:
    job.wait_for("a launcher", lambda: (job.out / "logs" / "actor-0.log").exists())


def _epoch_opens(job: RunningJob) -> None:
    job.wait_for_event("EpochOpened")


def _job_restarts(job: RunningJob) -> None:
    job.wait_for_step(job.step() + 2)
    kill(job.rank_pid("actor"))
    job.wait_for_event("RankExited", role="actor")


def _control_redis_is_gone(job: RunningJob) -> None:
    job.wait_for_step(job.step() + 2)
    kill(job.infrastructure_pid("control"))


def _coordinator_is_gone(job: RunningJob) -> None:
    job.wait_for_step(job.step() + 2)
    kill(job.infrastructure_pid("coordinator"))


MOMENTS = (_pods_start, _job_restarts, _coordinator_is_gone)
MORE_MOMENTS = (
    _the_folder_is_reported,
    _endpoints_are_written,
    _coordinator_runs,
    _epoch_opens,
    _control_redis_is_gone,
)


def interrupt(job: RunningJob) -> None:
    """Ctrl-C, and the job is started again."""
    job.interrupt()
    assert "resume with: rljob run" in job.output()
    assert job.status()["phase"] == "Interrupted"
    job.start()


@pytest.mark.long  # one moment is in test_folder
@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(MOMENTS, id="one after the other"),
        *(pytest.param([moment], id=moment.__name__.strip("_")) for moment in MORE_MOMENTS),
    ],
)
def test_an_interrupted_run_ends_and_goes_on(tmp_path: Path, moments: Sequence[Callable[[RunningJob], None]]) -> None:
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path), tmp_path)) as job:
        for moment in moments:
            moment(job)
            interrupt(job)
        job.assert_succeeded()
