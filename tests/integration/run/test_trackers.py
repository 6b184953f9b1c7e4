"""What is read back from trackers' files of a whole job that was restarted, resumed and lost a tracker's process."""

import importlib.util
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.telemetry.test_other_trackers import records
from tests.unit.telemetry.test_tensorboard import read

from .job import RunningJob, at_leisure, kill, make_simulated, new_interpreter

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

Rows = dict[int, tuple[float, int]]
"""Step -> mean reward and epoch."""


class Reporting(RunningJob):
    """Begun as a user's: a preloaded interpreter has an environment of its own."""

    begin = staticmethod(new_interpreter)


def of_run(job: RunningJob) -> Rows:
    """The rows that count: of a step that was trained twice, the later one."""
    return {line["step"]: (line["reward/mean"], line["epoch"]) for line in job.metrics()}


def of_tensorboard(job: RunningJob) -> Rows:
    found = read(job.out / "trackers/tensorboard/metrics")
    epochs = {one.step: int(one.value) for one in found.Scalars("step/epoch")}
    rewards = found.Scalars("reward/mean")
    assert len({one.step for one in rewards}) == len(rewards), "a step is there twice"
    return {one.step: (one.value, epochs[one.step]) for one in rewards}


def of_trackio(job: RunningJob) -> Rows:
    with sqlite3.connect(job.out.parent / "trackio/rljob.db") as database:
        runs = database.execute("SELECT DISTINCT run_name FROM metrics").fetchall()
        rows = database.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
    assert len(runs) == 1
    figures = [(step, json.loads(text)) for step, text in rows]
    trained = [(step, row) for step, row in figures if "reward/mean" in row]
    assert len({step for step, _ in trained}) == len(trained), "a step is there twice"
    return {step: (row["reward/mean"], int(row["step/epoch"])) for step, row in trained}


def of_wandb(job: RunningJob) -> Rows:
    """Of the rows of a step the one with the highest epoch counts (docs/metrics.md)."""
    runs: set[str] = set()
    found: Rows = {}
    for file in sorted((job.out / "trackers/wandb").rglob("*.wandb")):
        for record in records(file):
            if record.HasField("run"):
                runs.add(record.run.run_id)
            if record.HasField("history"):
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                if "reward/mean" in row and row["step/epoch"] >= found.get(int(row["step"]), (0.0, 0))[1]:
                    found[int(row["step"])] = row["reward/mean"], int(row["step/epoch"])
    assert len(runs) == 1
    return found


def assert_equal(found: Rows, expected: Rows) -> None:
    """Trackers may hold float32."""
    assert {step: epoch for step, (_, epoch) in found.items()} == {step: epoch for step, (_, epoch) in expected.items()}
    assert [found[step][0] for step in expected] == pytest.approx([reward for reward, _ in expected.values()])


READ_BACK = {"tensorboard": of_tensorboard, "trackio": of_trackio, "wandb": of_wandb}


def need(tracker: str) -> None:
    if importlib.util.find_spec(tracker) is None:
        pytest.skip(f"the extra {tracker} is not installed: pip install 'rljob[{tracker}]'")


def tracker_pid(job: RunningJob, name: str) -> int:
    """Of the process that feeds it."""
    for pid in job.processes():
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"rljob_workers.telemetry.trackers" in arguments and name.encode() in arguments:
            return pid
    return 0


def lines_taken(job: RunningJob, name: str) -> int:
    """Of metrics.jsonl, by its cursor."""
    file = job.out / f"trackers/{name}.json"
    return int(json.loads(file.read_bytes())["metrics"]["lines"]) if file.exists() else 0


@pytest.mark.parametrize("name", READ_BACK)
def test_a_tracker_has_one_run_over_a_restart_a_kill_of_its_process_and_a_resume(tmp_path: Path, name: str) -> None:
    need(name)
    made = make_simulated(tmp_path, rollout={"numRollouts": 20}, checkpoint={"everySteps": 4})
    manifest = at_leisure(made, tmp_path, seconds=2.5)
    manifest["spec"]["telemetry"] |= {"reportTo": [name]}
    env = {"TRACKIO_DIR": str(tmp_path / "trackio"), "WANDB_MODE": "offline"}
    with Reporting(tmp_path, manifest, env) as job:
        job.wait_for("its first rows", lambda: lines_taken(job, name) >= 6)
        kill(job.rank_pid("actor"))
        job.wait_for("the next epoch", lambda: job.epoch() == 2 and job.ready())
        job.wait_for("its process", lambda: tracker_pid(job, name) > 0)
        kill(tracker_pid(job, name))
        job.wait_for_event("TrackerFailed")
        taken = lines_taken(job, name)
        job.wait_for("a process that goes on", lambda: lines_taken(job, name) > taken)
        job.interrupt()
        job.start()
        job.assert_succeeded()
        command = [sys.executable, "-m", "rljob_workers.telemetry.trackers", str(job.out), name, "--once"]
        subprocess.run(command, env={**os.environ, **env}, check=True, timeout=300)
        expected = of_run(job)
        assert sorted(expected) == list(range(20))
        assert len({epoch for _, epoch in expected.values()}) >= 2
        assert_equal(READ_BACK[name](job), expected)


@contextmanager
def deaf(backlog: int, *, full: bool) -> Iterator[str]:
    """A server that never answers: it takes connections, or, with its backlog full, not even those."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as server:
        address = server.getsockname()
        held = [socket.socket() for _ in range(4 if full else 0)]
        for one in held:
            one.setblocking(False)
            one.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}"
        for one in held:
            one.close()


@pytest.mark.parametrize("full", [False, True], ids=["takes connections", "drops them"])
def test_a_tracker_behind_a_socket_that_never_answers_costs_a_job_nothing(tmp_path: Path, full: bool) -> None:
    """The job ends as if it were not there, and says so; its rows wait in the folder, and are given later."""
    need("wandb")
    manifest: dict[str, Any] = make_simulated(tmp_path, rollout={"numRollouts": 12})
    manifest["spec"]["telemetry"] |= {"reportTo": ["wandb"]}
    with deaf(0 if full else 16, full=full) as url:
        env = {"WANDB_BASE_URL": url, "WANDB_API_KEY": "0" * 40}
        with Reporting(tmp_path, manifest, env) as job:
            job.assert_succeeded(epochs=1)
            assert sorted(of_run(job)) == list(range(12))
            if not full:  # one that takes no connection is not there: the run is offline
                event = job.wait_for_event("TrackerFailed")
                assert "it has not got all of metrics.jsonl" in event["message"]
                assert "wandb --once` gives it the rest" in event["message"]
        command = [sys.executable, "-m", "rljob_workers.telemetry.trackers", str(job.out), "wandb", "--once"]
        subprocess.run(command, env={**os.environ, "WANDB_MODE": "offline"}, check=True, timeout=300)
    assert_equal(of_wandb(job), of_run(job))
