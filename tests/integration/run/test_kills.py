"""SIGKILL and SIGSTOP of everything that a run consists of: the table is followed, and the audit is exactly once."""

from pathlib import Path

import pytest

from .job import RunningJob, kill, make_manifest, stop

GLOBAL_ROLES = ("actor", "rollout", "actor_fwd")
IN_PLACE_ROLES = ("reference", "advantages")


@pytest.mark.parametrize("role", GLOBAL_ROLES)
def test_a_killed_rank_restarts_the_job(tmp_path: Path, role: str) -> None:
    with RunningJob(tmp_path, make_manifest(tmp_path)) as job:
        job.wait_for_step(2)
        epoch = job.epoch()
        kill(job.rank_pid(role))
        job.wait_for_event("RankExited", role=role, scope="Global")
        report = job.assert_succeeded()
        assert job.epoch() == epoch + 1
        assert report.epochs == 2


@pytest.mark.parametrize("role", IN_PLACE_ROLES)
def test_a_killed_rank_of_an_in_place_role_restarts_alone(tmp_path: Path, role: str) -> None:
    with RunningJob(tmp_path, make_manifest(tmp_path)) as job:
        job.wait_for_step(2)
        others = {name: job.rank_pid(name) for name in (*GLOBAL_ROLES, *IN_PLACE_ROLES) if name != role}
        kill(job.rank_pid(role))
        job.wait_for_event("RankExited", role=role, scope="InPlace")
        job.wait_for("the role to be ready again", job.ready)
        assert {name: job.rank_pid(name) for name in others} == others
        assert job.assert_succeeded().epochs == 1


def test_a_killed_launcher_takes_its_rank_along_and_comes_back(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_manifest(tmp_path)) as job:
        job.wait_for_step(2)
        kill(int(job.pod("rollout")["launcherPid"]))
        job.wait_for_event("LauncherLost", role="rollout", scope="Global")
        job.assert_succeeded()


def test_a_killed_engine_is_restarted_by_its_launcher_and_does_not_count(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_manifest(tmp_path)) as job:
        job.wait_for_step(2)
        kill(int(job.pod("rollout")["enginePid"]))
        job.wait_for_event("EngineExited", role="rollout")
        assert job.assert_succeeded().epochs == 1


@pytest.mark.parametrize("name", ["coordinator", "control"])
def test_killed_infrastructure_is_restarted_in_place(tmp_path: Path, name: str) -> None:
    with RunningJob(tmp_path, make_manifest(tmp_path)) as job:
        job.wait_for_step(2)
        epoch = job.epoch()
        kill(job.infrastructure_pid(name))
        job.wait_for_event("InfrastructureRestarted")
        job.assert_succeeded()
        assert job.epoch() == epoch


def test_a_killed_storage_unit_comes_back_empty_and_its_rows_are_made_again(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_manifest(tmp_path)) as job:
        job.wait_for_step(2)
        kill(job.infrastructure_pid("storage-0"))
        job.wait_for_event("InfrastructureRestarted")
        job.assert_succeeded()


def test_a_killed_run_leaves_nothing_and_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    with RunningJob(tmp_path, make_manifest(tmp_path)) as job:
        job.wait_for_step(3)
        epoch = job.epoch()
        kill(job.process.pid)
        job.process.wait(10)
        job.wait_gone()
        job.start()
        job.assert_succeeded()
        assert job.epoch() > epoch


@pytest.mark.parametrize(
    ("role", "scope"),
    [
        ("actor", "Global"),
        ("rollout", "Global"),
        ("actor_fwd", "Global"),
        ("reference", "InPlace"),
        ("advantages", "InPlace"),
    ],
)
def test_a_stopped_rank_is_found_named_and_restarted(tmp_path: Path, role: str, scope: str) -> None:
    with RunningJob(tmp_path, make_manifest(tmp_path)) as job:
        job.wait_for_step(2)
        stop(job.rank_pid(role))
        event = job.wait_for_event("Hang", role=role, scope=scope)
        assert f"{role}-0" in event["message"]
        job.assert_succeeded()
