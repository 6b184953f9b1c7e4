"""`rljob evaluate` beside no job: its end by Ctrl-C, a kill of its engine, and checkpoints that it refuses."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rljob_api.machine.process_stat import PARENT, stat_of
from tests.records import made_weights, make_record

from .job import RunningJob, kill, new_interpreter
from .test_evaluation import evaluated_job, scored


class RunningEvaluation(RunningJob):
    """`rljob evaluate`, with what `options` say beside the manifest."""

    begin = staticmethod(new_interpreter)

    def start(self) -> Any:  # noqa: ANN401 - as its base
        self.process = self.begin(["evaluate", str(self._file), *self._options], self._env, self._output)
        return self.process

    def engine(self) -> int:
        """The process whose child none of the others is: it has a port, and begins no other."""
        (keeper,) = (pid for pid in self.processes() if parent_of(pid) == self.process.pid)
        children = sorted(pid for pid in self.processes() if parent_of(pid) == keeper)
        return children[1]  # the first one, which asks, was begun before it


def parent_of(pid: int) -> int:
    stat = stat_of(pid)
    return -1 if stat is None else int(stat[PARENT])


def job_of_record(folder: Path, **config: int) -> tuple[dict[str, Any], Path]:
    """A job that has a record of its model, as nothing has trained it."""
    manifest = evaluated_job(folder)
    manifest["spec"]["model"]["config"] |= {"intermediateSize": 48, **config}
    return manifest, make_record(folder / "checkpoints", made_weights(), [])


def results(folder: Path) -> dict[str, Any]:
    """Of the one evaluation whose line is there, without its time."""
    (line,) = (json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines())
    return {name: value for name, value in line.items() if name != "time"}


def test_ctrl_c_ends_it_and_its_engine(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    manifest, record = job_of_record(folder)
    with RunningEvaluation(folder, manifest, options=["--checkpoint", str(record)]) as command:
        command.wait_for("some scores", lambda: scored(folder) >= 3)
        assert len(command.processes()) == 4
        command.interrupt()
        assert command.output().startswith("engines start\n")
        assert "Traceback" not in command.output()


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    manifest, record = job_of_record(folder, numLayers=3)
    with RunningEvaluation(folder, manifest, options=["--checkpoint", str(record)]) as command:
        assert command.process.wait(240) == 64
        command.wait_gone()
        assert command.output().splitlines()[-1] == (
            f"--checkpoint: {record} is of another model than spec.model: its num_hidden_layers is 2, and spec.model"
            " has 3. Give a checkpoint of this job's model, or the manifest that it was trained by."
        )


@pytest.mark.long
def test_a_killed_engine_is_started_again_and_changes_nothing(tmp_path: Path) -> None:
    found = []
    for is_struck in (False, True):
        folder = tmp_path / f"job-{is_struck}"
        manifest, record = job_of_record(folder)
        options = ["--checkpoint", str(record), "--out", str(folder / "results.jsonl")]
        manifest["spec"]["rollout"]["concurrency"] = 16  # so that some are made after the kill
        with RunningEvaluation(folder, manifest, options=options) as command:
            if is_struck:
                command.wait_for("some scores", lambda: scored(folder) >= 3)
                kill(command.engine())
            assert command.process.wait(240) == 0, command.output()
            command.wait_gone()
        found.append(results(folder))
    plain, struck = found
    assert struck | {"checkpoint": ""} == plain | {"checkpoint": ""}


@pytest.mark.long
def test_an_engine_that_never_starts_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    manifest, record = job_of_record(folder)
    with RunningEvaluation(folder, manifest, options=["--checkpoint", str(record)]) as command:
        for _ in range(5):
            before = -1
            command.wait_for("an engine", lambda before=before: len(command.processes()) == 4)
            before = command.engine()
            os.kill(before, signal.SIGKILL)
            command.wait_for("its end", lambda pid=before: pid not in command.processes())
        try:
            code = command.process.wait(240)
        except subprocess.TimeoutExpired:
            raise AssertionError(command.output()) from None
        assert code == 1
        command.wait_gone()
        assert "The engine of rollout-0 was killed by SIGKILL" in command.output()
