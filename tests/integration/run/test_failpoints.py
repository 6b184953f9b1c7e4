"""Death inside the windows of the contract: after a script and before its reply, between record and delete ..."""

from pathlib import Path

import pytest

from .job import RunningJob, at_leisure, kill, make_simulated

WINDOWS = {
    "publish.before": 3,  # trained and not yet published
    "publish.after": 7,  # published and not yet reported
    "publish.part_staged": 13,  # served and not yet told
    "checkpoint.before_rename": 5,  # written and not yet in place
    "checkpoint.before_record": 7,  # in place and not yet recorded
    "checkpoint.after_record": 9,  # recorded and nothing deleted yet
    "checkpoint.begun": 11,  # begun and nothing written
    "checkpoint.part_written": 12,  # a part written and not yet reported
    "queue.between_bytes_and_commit": 220,  # between the bytes and the commit that names them
    "queue.after_script": 900,  # after a script ran and before its reply was used
}
"""A window, and the pass in which a rank dies there: one after the other, each in another step of the same job."""


def test_a_rank_that_dies_in_a_window_costs_nothing_in_any_of_them(tmp_path: Path) -> None:
    marks = tmp_path / "failpoints"
    marks.mkdir()
    armed = ",".join(f"{name}={count}" for name, count in WINDOWS.items())
    env = {"RLJOB_FAILPOINTS": armed, "RLJOB_FAILPOINTS_DIR": str(marks)}
    manifest = make_simulated(
        tmp_path, rollout={"numRollouts": 40}, restartPolicy={"maxGlobalRestarts": 100, "threshold": 100}
    )
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path, seconds=0.1), env) as job:
        for name in WINDOWS:
            job.wait_for(f"the death in {name}", (marks / f"{name}.fired").exists)
        job.assert_succeeded()


def test_a_rank_that_dies_within_a_collective_costs_nothing(tmp_path: Path) -> None:
    marks = tmp_path / "failpoints"
    marks.mkdir()
    env = {"RLJOB_FAILPOINTS": "collective.entered=25", "RLJOB_FAILPOINTS_DIR": str(marks)}
    with RunningJob(tmp_path, make_simulated(tmp_path, roles={"actor": {"replicas": 2}}), env) as job:
        job.assert_succeeded()
    assert (marks / "collective.entered.fired").exists(), "nothing died: the window was never passed"


@pytest.mark.parametrize("name", ["epoch.after_persist", "epoch.after_raise"])
@pytest.mark.parametrize(
    "count", [pytest.param(1, id="of the start", marks=pytest.mark.long), pytest.param(2, id="of a restart")]
)
def test_a_supervisor_that_dies_in_the_window_goes_on_when_started_again(tmp_path: Path, name: str, count: int) -> None:
    marks = tmp_path / "failpoints"
    marks.mkdir()
    env = {"RLJOB_FAILPOINTS": f"{name}={count}", "RLJOB_FAILPOINTS_DIR": str(marks)}
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path), tmp_path), env) as job:
        if count == 2:
            job.wait_for_step(1)
            kill(job.rank_pid("actor"))
        assert job.finish() == -9
        job.wait_gone()
        job.assert_epoch(count)
        job.start()
        job.assert_succeeded()
        job.assert_epoch(count + 1)


@pytest.mark.parametrize(
    "count", [pytest.param(1, id="of the start", marks=pytest.mark.long), pytest.param(2, id="of a restart")]
)
def test_a_coordinator_that_dies_with_an_epoch_half_raised_is_asked_again(tmp_path: Path, count: int) -> None:
    marks = tmp_path / "failpoints"
    marks.mkdir()
    env = {"RLJOB_FAILPOINTS": f"coordinator.epoch_raised={count}", "RLJOB_FAILPOINTS_DIR": str(marks)}
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path), tmp_path), env) as job:
        if count == 2:
            job.wait_for_step(1)
            kill(job.rank_pid("actor"))
        job.assert_succeeded()
        assert job.infrastructure_restarts("coordinator") == 1
        job.assert_epoch(count)
    assert (marks / "coordinator.epoch_raised.fired").exists(), "nothing died: the window was never passed"
