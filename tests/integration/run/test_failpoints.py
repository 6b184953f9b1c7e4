"""Death inside the windows of the contract: after a script and before its reply, between record and delete ..."""

from pathlib import Path

import pytest

from .job import RunningJob, at_leisure, kill, make_simulated

WINDOWS = {
    "publish.before": 3,  # trained and not yet published
    "publish.after": 7,  # published and not yet reported
    "publish.part_staged": 13,  # served and not yet reported
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
        tmp_path,
        rollout={"numRollouts": 40},
        restartPolicy={"maxGlobalRestarts": 100, "threshold": 100, "backoff": {"initialSeconds": 0}},
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


def armed(tmp_path: Path, **windows: int) -> dict[str, str]:
    """The environment of a job whose processes die in windows of an epoch's opening, each in the given pass."""
    marks = tmp_path / "failpoints"
    marks.mkdir()
    given = ",".join(f"{name.replace('__', '.')}={count}" for name, count in windows.items())
    return {"RLJOB_FAILPOINTS": given, "RLJOB_FAILPOINTS_DIR": str(marks)}


def test_a_process_that_dies_while_a_restart_opens_its_epoch_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    """The supervisor between persisting and raising it, then after that; then the coordinator, with it half raised.

    Each start of the run passes all three windows as well, but for that in which the supervisor before it died.
    """
    env = armed(tmp_path, epoch__after_persist=2, epoch__after_raise=3, coordinator__epoch_raised=5)
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path), tmp_path), env) as job:
        for epoch in (2, 4):
            job.wait_for("all to be ready", job.ready)
            job.wait_for_step(job.step() + 1)
            kill(job.rank_pid("actor"))
            assert job.process.wait(240) == -9, job.stated()
            job.wait_gone()
            job.assert_epoch(epoch)
            job.start()
            job.wait_for_event("Resumed", message=f"epoch {epoch + 1} begins after epoch {epoch}")
        job.wait_for("all to be ready", lambda: job.epoch() == 5 and job.ready())
        kill(job.rank_pid("actor"))
        job.assert_succeeded()
        assert job.infrastructure_restarts("coordinator") == 1
        job.assert_epoch(6)
    assert (tmp_path / "failpoints/coordinator.epoch_raised.fired").exists(), "the window was never passed"


@pytest.mark.long
@pytest.mark.parametrize("name", ["epoch__after_persist", "epoch__after_raise"])
def test_a_supervisor_that_dies_in_the_window_of_the_start_goes_on_when_started_again(
    tmp_path: Path, name: str
) -> None:
    env = armed(tmp_path, **{name: 1})
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path), tmp_path), env) as job:
        assert job.finish() == -9
        job.wait_gone()
        job.assert_epoch(1)
        job.start()
        job.assert_succeeded()
        job.assert_epoch(2)


@pytest.mark.long
def test_a_coordinator_that_dies_with_the_first_epoch_half_raised_is_asked_again(tmp_path: Path) -> None:
    env = armed(tmp_path, coordinator__epoch_raised=1)
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path), tmp_path), env) as job:
        job.assert_succeeded()
        assert job.infrastructure_restarts("coordinator") == 1
        job.assert_epoch(1)
    assert (tmp_path / "failpoints/coordinator.epoch_raised.fired").exists(), "the window was never passed"
