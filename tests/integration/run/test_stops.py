"""SIGSTOP of what serves the ranks: it is found by its silence, named, and started again; no one else is accused."""

from pathlib import Path

import pytest

from .job import RunningJob, at_leisure, make_simulated, stop

SHORT_PATIENCE = {"heartbeatTimeoutSeconds": 5}
"""Shorter than that of the supervisor with what serves the ranks."""


@pytest.mark.parametrize(
    "name",
    ["coordinator", pytest.param("control", marks=pytest.mark.long), pytest.param("storage-0", marks=pytest.mark.long)],
)
def test_stopped_infrastructure_alone_is_named_and_started_again(tmp_path: Path, name: str) -> None:
    # A job goes on without one storage unit: it must not be over before the silence is long enough.
    manifest = make_simulated(tmp_path, rollout={"numRollouts": 40}, restartPolicy=SHORT_PATIENCE)
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path, seconds=1.0)) as job:
        job.wait_for_step(2)
        job.write_at_once()
        pid = job.infrastructure_pid(name)
        stop(pid)
        event = job.wait_for_event("Hang")
        assert event["message"].startswith(f"{name} (process {pid}) has not answered")
        job.wait_for("its restart", lambda: job.infrastructure_pid(name) != pid)
        job.assert_succeeded()
        # Rows that were in training with a unit need a restart by the contract; nothing else does.
        allowed = {"RowsLost"} if name.startswith("storage") else set()
        assert {event["reason"] for event in job.events() if event["scope"]} <= allowed
        assert [event["message"] for event in job.events() if event["reason"] == "Hang"] == [event["message"]]


@pytest.mark.long
def test_a_stopped_launcher_is_replaced_with_its_rank(tmp_path: Path) -> None:
    # Its rank goes on working: the job must not be over before the silence is long enough.
    manifest = make_simulated(tmp_path, rollout={"numRollouts": 40}, restartPolicy=SHORT_PATIENCE)
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path, seconds=1.0)) as job:
        job.wait_for_step(2)
        launcher, rank = int(job.pod("reference")["launcherPid"]), job.rank_pid("reference")
        stop(launcher)
        event = job.wait_for_event("LauncherLost", role="reference", scope="InPlace")
        assert "the launcher of reference-0 has not asked the coordinator for orders" in event["message"]
        job.wait_for("another launcher", lambda: job.ready() and int(job.pod("reference")["launcherPid"]) != launcher)
        assert job.rank_pid("reference") != rank
        job.assert_succeeded()
        assert not Path(f"/proc/{launcher}").exists()


def test_a_stopped_engine_is_found_by_its_launcher_and_does_not_count(tmp_path: Path) -> None:
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path, restartPolicy=SHORT_PATIENCE), tmp_path)) as job:
        job.wait_for_step(2)
        engine = int(job.pod("rollout")["enginePid"])
        stop(engine)
        event = job.wait_for_event("EngineExited", role="rollout")
        assert "/health" in event["message"]
        job.assert_succeeded(epochs=1)
