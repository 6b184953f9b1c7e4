"""The rows of the restart table as a user sets and sees them."""

from pathlib import Path

import pytest

from .job import RunningJob, at_leisure, kill, make_manifest, make_simulated


def test_the_third_failure_of_reference_is_global(tmp_path: Path) -> None:
    manifest = at_leisure(make_simulated(tmp_path, rollout={"numRollouts": 30}), tmp_path)
    with RunningJob(tmp_path, manifest) as job:
        job.wait_for_step(1)
        epoch = job.epoch()
        for generation in (1, 2):
            kill(job.rank_pid("reference"))
            job.wait_for(
                "reference to be ready in place",
                lambda wanted=generation: job.pod("reference")["generation"] == wanted and job.ready(),  # type: ignore[misc] # bound per turn
            )
        job.assert_epoch(epoch)
        kill(job.rank_pid("reference"))
        job.wait_for_event("RankExited", role="reference", scope="Global")
        job.assert_succeeded()
        job.assert_epoch(epoch + 1)


def test_more_global_restarts_than_allowed_fail_the_job_with_the_reason(tmp_path: Path) -> None:
    manifest = at_leisure(make_simulated(tmp_path, restartPolicy={"maxGlobalRestarts": 1}), tmp_path)
    with RunningJob(tmp_path, manifest) as job:
        job.wait_for_step(1)
        epoch = job.epoch()
        kill(job.rank_pid("actor"))
        job.wait_for("the next epoch to be ready", lambda: job.epoch() == epoch + 1 and job.ready())
        kill(job.rank_pid("actor"))
        assert job.finish() == 1
        event = job.wait_for_event("MaxGlobalRestartsExceeded")
        assert "maxGlobalRestarts" in event["message"]
        assert job.status()["phase"] == "Failed"
        job.wait_gone()


def test_a_rollout_in_place_restarts_alone_while_the_others_never_stop(tmp_path: Path) -> None:
    manifest = make_simulated(
        tmp_path,
        restartPolicy={"table": {"rollout": "InPlace"}},
        roles={"rollout": {"replicas": 2}},
    )
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        job.wait_for_step(2)
        others = {role: job.rank_pid(role) for role in ("actor", "actor_fwd", "reference", "advantages")}
        engine = job.pod("rollout")["enginePid"]
        kill(job.rank_pid("rollout"))
        job.wait_for_event("RankExited", role="rollout", scope="InPlace")
        job.wait_for("the replica to be ready again", job.ready)
        assert {role: job.rank_pid(role) for role in others} == others
        assert job.pod("rollout")["enginePid"] == engine
        job.assert_succeeded(epochs=1)


def test_two_data_parallel_ranks_train_the_same_job(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path, roles={"actor": {"replicas": 2}}, rollout={"numRollouts": 20})
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        job.wait_for_step(2)
        kill(job.rank_pid("actor", 1))
        job.wait_for_event("RankExited", role="actor", scope="Global")
        job.assert_succeeded()


@pytest.mark.parametrize("role", [pytest.param("actor", marks=pytest.mark.long), "advantages"])
def test_what_dies_again_and_again_is_restarted_each_time(tmp_path: Path, role: str) -> None:
    """Restarts do not disturb the ones after them: ranks and launchers of one role in turn."""
    scope = "Global" if role == "actor" else "InPlace"
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path, rollout={"numRollouts": 30}), tmp_path)) as job:
        job.wait_for_step(1)
        kill(job.rank_pid(role))
        job.wait_for_event("RankExited", role=role, scope=scope)
        job.wait_for("all pods to be ready", job.ready)
        kill(int(job.pod(role)["launcherPid"]))
        job.wait_for_event("LauncherLost", role=role, scope=scope)
        job.assert_succeeded()
