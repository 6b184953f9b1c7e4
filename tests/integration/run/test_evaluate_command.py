"""`rljob evaluate` beside no job: its end by Ctrl-C, a kill of its engine, and checkpoints that it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_api.machine.process_stat import PARENT, stat_of
from rljob_workers.launcher.evaluate import MOST_DEATHS
from tests.records import made_weights, make_record

from .job import Process, RunningJob, kill, new_interpreter
from .test_evaluation import evaluated_job, scored


class RunningEvaluation(RunningJob):
    """`rljob evaluate`, with what `options` say beside the manifest."""

    begin = staticmethod(new_interpreter)

    def start(self) -> Process:
        """See the base."""
        self.process = self.begin(["evaluate", str(self._file), *self._options], self._env, self._output)
        return self.process

    def kill_engine(self) -> None:
        """Kills the only one, and waits until it is gone."""
        (keeper,) = (pid for pid in self.processes() if parent_of(pid) == self.process.pid)
        _, engine = sorted(pid for pid in self.processes() if parent_of(pid) == keeper)  # what asks it is begun first
        kill(engine)
        self.wait_for("its end", lambda: engine not in self.processes())


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


def evaluated(folder: Path, *options: str, kills_engine: bool = False) -> dict[str, Any]:
    manifest, record = job_of_record(folder)
    manifest["spec"]["rollout"]["concurrency"] = 16  # so that most is made after a kill
    given = ["--checkpoint", str(record), "--out", str(folder / "results.jsonl"), *options]
    with RunningEvaluation(folder, manifest, options=given) as command:
        if kills_engine:
            command.wait_for("some scores", lambda: scored(folder) >= 3)
            command.kill_engine()
        assert command.process.wait(240) == 0, command.output()
        command.wait_gone()
    return results(folder)


@pytest.mark.long
def test_neither_a_killed_engine_nor_a_second_one_changes_anything(tmp_path: Path) -> None:
    plain = evaluated(tmp_path / "plain")
    struck = evaluated(tmp_path / "struck", kills_engine=True)
    by_two = evaluated(tmp_path / "two", "--set", "roles.rollout.replicas=2")
    assert struck | {"checkpoint": ""} == plain | {"checkpoint": ""} == by_two | {"checkpoint": ""}


@pytest.mark.long
def test_an_engine_that_dies_again_and_again_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    manifest, record = job_of_record(folder)
    with RunningEvaluation(folder, manifest, options=["--checkpoint", str(record)]) as command:
        for _ in range(MOST_DEATHS):
            command.wait_for("an engine", lambda: len(command.processes()) == 4)
            command.kill_engine()
        assert command.process.wait(240) == 1
        command.wait_gone()
        assert "The engine of rollout-0 was killed by SIGKILL" in command.output()
