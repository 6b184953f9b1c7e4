"""State that is gone: a tail of the control Redis, all of it, storage units again and again."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from .job import RunningJob, at_leisure, kill, make_manifest, make_simulated, stop

CUT_BYTES = 20_000
"""Some dozens of calls: more than what no one may have seen yet, less than a step."""


def newest_log(job: RunningJob) -> Path:
    """The file that the control Redis appends to."""
    return max((job.out / "redis" / "control").glob("**/*.incr.aof"), key=lambda path: path.stat().st_mtime)


def cut_tail(job: RunningJob, num_bytes: int) -> None:
    """What a crash of the machine does to a file that is synced once a second."""
    log = newest_log(job)
    size = log.stat().st_size
    assert size > num_bytes
    os.truncate(log, size - num_bytes)


def drawn_prompts(job: RunningJob) -> int:
    """The cursor over the prompts in the last checkpoint."""
    record = json.loads((job.out / "checkpoints" / "record.json").read_bytes())
    tickets = job.out / "checkpoints" / record["folder"] / "tickets.json"
    return int(json.loads(tickets.read_bytes())["cursor"])


def test_a_tail_that_launchers_saw_is_named_and_restarts_the_job_from_its_record(tmp_path: Path) -> None:
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path), tmp_path)) as job:
        job.wait_for_step(4)
        epoch, control = job.epoch(), job.infrastructure_pid("control")
        stop(job.process.pid)  # so that nothing starts it again before its file is cut
        kill(control)
        job.wait_for("the end of its life", lambda: _is_dead(control))
        cut_tail(job, CUT_BYTES)
        job.process.send_signal(signal.SIGCONT)
        event = job.wait_for_event("ControlStateLost", scope="Global")
        assert "from the last recorded checkpoint" in event["message"]
        report = job.assert_succeeded()
        assert report.epochs == 2
        job.assert_epoch(epoch + 1)
        assert drawn_prompts(job) == _all_groups(job)


@pytest.mark.parametrize(
    "share", [pytest.param(0.02, id="a tail", marks=pytest.mark.long), pytest.param(0.7, id="most of it")]
)
def test_a_run_goes_on_from_its_record_file_after_a_crash_cut_the_log(tmp_path: Path, share: float) -> None:
    # Long until the next record: a kill between the queue's word and the file would leave two of them.
    manifest = make_simulated(tmp_path, checkpoint={"everySteps": 8})
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path)) as job:
        job.wait_for_step(8)
        job.wait_for("its record", lambda: _recorded(job) >= 8)
        _kill_run(job)
        recorded = _recorded(job)
        cut_tail(job, int(newest_log(job).stat().st_size * share))
        job.start()
        job.wait_for("its second epoch", lambda: job.epoch() == 2)
        job.wait_for("its restore", lambda: sum(event["reason"] == "EpochOpened" for event in job.events()) == 2)
        (opened,) = [event["message"] for event in job.events() if event["message"].startswith("epoch 2 is open")]
        assert f"from version {recorded}," in opened
        job.assert_succeeded(epochs=2)
        assert drawn_prompts(job) == _all_groups(job)


@pytest.mark.parametrize(
    "is_known", [True, pytest.param(False, marks=pytest.mark.long)], ids=["with its status", "without it"]
)
def test_a_run_whose_control_state_is_all_gone_goes_on_with_the_checkpoints_draws(
    tmp_path: Path, is_known: bool
) -> None:
    """Without its status it is a new run that meets the checkpoints of an earlier one, as a job on a cluster may."""
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path), tmp_path)) as job:
        job.wait_for_step(6)
        _kill_run(job)
        shutil.rmtree(job.out / "redis")
        if not is_known:
            (job.out / "status.json").unlink()
        job.start()
        job.assert_succeeded(epochs=2)
        resumed = [event["message"] for event in job.events() if event["reason"] == "Resumed"]
        whose = "" if is_known else " of an earlier job, whose last checkpoint it goes on from"
        assert resumed == [f"epoch 2 begins after epoch 1{whose}"]
        assert drawn_prompts(job) == _all_groups(job)


@pytest.mark.long
def test_storage_units_that_die_again_and_again_cost_only_their_rows(tmp_path: Path) -> None:
    with RunningJob(tmp_path, at_leisure(make_simulated(tmp_path, rollout={"numRollouts": 50}), tmp_path)) as job:
        job.wait_for_step(2)
        for turn in range(6):
            name = f"storage-{turn % 2}"
            before, step = job.infrastructure_restarts(name), job.step()
            kill(job.infrastructure_pid(name))
            job.wait_for("its restart", lambda: job.infrastructure_restarts(name) == before + 1)  # noqa: B023 - used at once
            job.wait_for_step(step + 2)
        assert job.infrastructure_restarts("storage-0") == 3
        job.assert_succeeded()


@pytest.mark.long
def test_no_ticket_is_lost_with_replicas_that_die_over_their_work(tmp_path: Path) -> None:
    # Long answers: whenever a replica dies, tickets are in its work.
    slow = {"numRollouts": 120, "sampling": {"maxNewTokens": 48}}
    manifest = make_manifest(
        tmp_path,
        rollout=slow,
        roles={"rollout": {"replicas": 2}},
        restartPolicy={"table": {"rollout": "InPlace"}, "threshold": 100},
    )
    with RunningJob(tmp_path, manifest) as job:
        for turn in range(4):
            job.wait_for_step(3 * turn + 2)
            job.wait_for("both replicas", job.ready)
            killed, other = turn % 2, 1 - turn % 2
            generation = job.pod("rollout", killed)["generation"]
            kill(job.rank_pid("rollout", killed))
            kill(int(job.pod("rollout", other)["enginePid"]))
            job.wait_for("its loss", lambda: job.pod("rollout", killed)["generation"] > generation)  # noqa: B023 - used at once
        job.assert_succeeded(epochs=1)
        assert drawn_prompts(job) == _all_groups(job)
        assert {event["scope"] for event in job.events() if event["reason"] == "RankExited"} == {"InPlace"}


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _kill_run(job: RunningJob) -> None:
    kill(job.process.pid)
    job.process.wait(240)
    job.wait_gone()


def _recorded(job: RunningJob) -> int:
    """The version of the last record; -1 before the first."""
    record = job.out / "checkpoints" / "record.json"
    return int(json.loads(record.read_bytes())["id"]["version"]) if record.exists() else -1


def _all_groups(job: RunningJob) -> int:
    rollout = job.manifest.spec.rollout
    return rollout.num_rollouts * rollout.batch_size
