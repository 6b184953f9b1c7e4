"""SIGKILL and SIGSTOP of everything that a run consists of: the table is followed, and the audit is exactly once."""

from pathlib import Path

from .job import RunningJob, at_leisure, kill, make_simulated, stop

GLOBAL_ROLES = ("actor", "rollout", "actor_fwd")
IN_PLACE_ROLES = ("reference", "advantages")
LONG = {"numRollouts": 50}
PACE = 0.8
"""Seconds a rollout, of which 50 are time enough for five faults: what is left of them then is trained in a hurry."""
SHORT_PATIENCE = {"heartbeatTimeoutSeconds": 5}
"""Where silence is what the test is about. Else the default: a busy machine is silent for a while, too."""


def test_every_death_in_a_role_of_the_gradients_path_restarts_the_job(tmp_path: Path) -> None:
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path, rollout=LONG), tmp_path, PACE)) as job:
        for turn, role in enumerate(GLOBAL_ROLES):
            job.wait_for_step(job.step() + 2)
            epoch = job.epoch()
            kill(job.rank_pid(role))
            job.wait_for_event("RankExited", role=role, scope="Global")
            job.wait_for("the next epoch", lambda before=epoch: job.epoch() == before + 1 and job.ready())  # type: ignore[misc] # bound per turn
            assert turn + 2 == job.epoch()
        job.wait_for_step(job.step() + 2)
        kill(int(job.pod("rollout")["launcherPid"]))  # takes its rank along
        job.wait_for_event("LauncherLost", role="rollout", scope="Global")
        epoch = len(GLOBAL_ROLES) + 2
        job.wait_for("the next epoch", lambda: job.epoch() == epoch and job.ready())
        _stop_what_the_next_epoch_needs(job, epoch + 1)
        stop(job.infrastructure_pid("parent"))  # no one needs it any more, and the end does not wait for it
        report = job.assert_succeeded()
        assert job.epoch() == report.epochs == epoch + 1


def _stop_what_the_next_epoch_needs(job: RunningJob, epoch: int) -> None:
    """A launcher that would take no order, and an engine that would answer no rank: both are replaced at once."""
    job.wait_for_step(job.step() + 2)
    stop(int(job.pod("advantages")["launcherPid"]))
    stop(int(job.pod("rollout")["enginePid"]))
    kill(job.rank_pid("actor_fwd"))
    job.wait_for("the next epoch", lambda: job.epoch() == epoch and job.ready())
    message = {event["reason"]: event for event in job.events()}
    text = f"the launcher of advantages-0 is stopped (SIGSTOP) and does not take the order of epoch {epoch}; "
    assert message["LauncherLost"]["message"].startswith(text)
    assert message["LauncherLost"]["scope"] is None
    assert message["EngineExited"]["message"].endswith("it is stopped (SIGSTOP)")
    job.wait_for_step(job.step() + 2)


def test_what_may_die_alone_comes_back_alone(tmp_path: Path) -> None:
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path, rollout=LONG), tmp_path, PACE)) as job:
        for role in IN_PLACE_ROLES:
            job.wait_for_step(job.step() + 2)
            others = {name: job.rank_pid(name) for name in (*GLOBAL_ROLES, *IN_PLACE_ROLES) if name != role}
            kill(job.rank_pid(role))
            job.wait_for_event("RankExited", role=role, scope="InPlace")
            job.wait_for("the role to be ready again", job.ready)
            assert {name: job.rank_pid(name) for name in others} == others
        kill(int(job.pod("rollout")["enginePid"]))
        job.wait_for_event("EngineExited", role="rollout")
        job.write_at_once()
        for name in ("coordinator", "control"):
            job.wait_for_step(job.step() + 2)
            kill(job.infrastructure_pid(name))
            job.wait_for(f"another {name}", lambda killed=name: job.infrastructure_restarts(killed) == 1)  # type: ignore[misc] # bound per turn
        job.assert_succeeded(epochs=1)
        job.assert_epoch(1)


def test_rows_of_a_killed_storage_unit_are_made_again_and_a_killed_run_leaves_nothing_and_goes_on(
    tmp_path: Path,
) -> None:
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path), tmp_path)) as job:
        job.wait_for_step(2)
        kill(job.infrastructure_pid("storage-0"))
        job.wait_for_event("InfrastructureRestarted")
        job.wait_for_step(job.step() + 2)
        epoch = job.epoch()
        kill(job.process.pid)
        job.process.wait(240)
        job.wait_gone()
        job.start()
        job.assert_succeeded()
        assert job.epoch() > epoch


def test_a_rank_that_is_stopped_is_found_named_and_restarted(tmp_path: Path) -> None:
    manifest = make_simulated(tmp_path, rollout=LONG, restartPolicy=SHORT_PATIENCE)
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path, PACE)) as job:
        for role, scope in [
            *((role, "InPlace") for role in IN_PLACE_ROLES),
            *((role, "Global") for role in GLOBAL_ROLES),
        ]:
            job.wait_for("all to be ready", job.ready)
            job.wait_for_step(job.step() + 2)
            pid = job.rank_pid(role)
            stop(pid)
            event = job.wait_for_event("Hang", role=role, scope=scope)
            assert f"{role}-0" in event["message"]
            job.wait_for("another rank", lambda old=pid, of=role: job.ready() and job.rank_pid(of) != old)  # type: ignore[misc] # bound per turn
        job.assert_succeeded(epochs=len(GLOBAL_ROLES) + 1)
