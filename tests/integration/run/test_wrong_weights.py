"""An engine that answers `success` and has other weights is named, and nothing that it made of them is trained on."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from safetensors.torch import load_file, save_file

from rljob_cli.jobs.sample_log import read_lines
from tests.integration.preloaded.client import fork_program
from tests.integration.run.lying_engine import ALWAYS, DROPS, FOLDER, OTHER, THIS_INCARNATION
from tests.integration.run.test_models import save_model

from .job import Process, RunningJob, at_leisure, kill, make_manifest, make_simulated


def behind_a_proxy(arguments: Sequence[str], environment: dict[str, str], output: IO[bytes]) -> Process:
    return fork_program("tests.integration.run.lying_engine", arguments, environment=environment, output=output)


@pytest.fixture(autouse=True)
def _proxy(_start: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningJob, "begin", staticmethod(behind_a_proxy))


def dropped(folder: Path) -> list[int]:
    """The versions whose updates were dropped, by the names of their folders."""
    return [int(version) for version in re.findall(r"-(\d+)$", (folder / "dropped").read_text(), re.MULTILINE)]


def trained_under(job: RunningJob) -> set[int]:
    """The versions, by the engine's word, of all rows that were trained on."""
    return {line.weight_version for line in read_lines(job.out / "samples.jsonl")}


def roles(kind: str) -> dict[str, Any]:
    return {"reference": {}, "rollout": {"engine": {"kind": kind}}}


@pytest.mark.parametrize("kind", ["Torch", pytest.param("SGLang", marks=pytest.mark.long)])
def test_weights_that_an_engine_has_not_taken_are_loaded_again_and_one_that_lies_on_is_ended(
    tmp_path: Path, kind: str
) -> None:
    """Also where its rank dies between finding it and ending it: the next rank finds it again."""
    manifest = at_leisure(make_manifest(tmp_path, rollout={"numRollouts": 40}, roles=roles(kind)), tmp_path)
    with RunningJob(tmp_path, manifest, {FOLDER: str(tmp_path)}) as job:
        job.wait_for_step(3)
        (tmp_path / DROPS).write_text("1")
        event = job.wait_for_event("WrongWeights", role="rollout")
        (version,) = dropped(tmp_path)
        assert f"says that it has v{version}@1 and has other weights: " in event["message"]
        assert "log-probs of the probe differ" in event["message"]
        job.wait_for_step(version + 1)
        job.assert_epoch(1)
        liar = int(job.pod("rollout")["enginePid"])
        (tmp_path / DROPS).write_text(THIS_INCARNATION)
        job.wait_for("a lie", lambda: len(dropped(tmp_path)) > 1)
        kill(job.rank_pid("rollout"))
        ended = job.wait_for_event("EngineExited", role="rollout")
        assert "was killed by SIGKILL: its rank has ended it: The engine says that it has v" in ended["message"]
        job.wait_for("another process", lambda: int(job.pod("rollout")["enginePid"] or liar) != liar)
        assert liar not in job.processes()
        lies = dropped(tmp_path)
        job.assert_succeeded()
        assert dropped(tmp_path) == lies, "only the process that was ended has lied"
        assert job.epoch() <= 3, "a restart for the killed rank, and one for the engine that lied"


def test_a_job_whose_engines_take_no_weights_ends_by_name_and_trains_nothing_from_them(tmp_path: Path) -> None:
    patience = {"maxGlobalRestarts": 1}
    manifest = make_manifest(tmp_path, rollout={"numRollouts": 20}, restartPolicy=patience, roles=roles("Sim"))
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path), {FOLDER: str(tmp_path)}) as job:
        job.wait_for_step(3)
        (tmp_path / DROPS).write_text(ALWAYS)
        assert job.finish() != 0
        first = min(dropped(tmp_path))
        ended = job.status()["restart"]["message"]
        assert ended.startswith("rollout-0.0 "), job.stated()
        assert "WrongWeights" in job.stated()
        assert max(trained_under(job)) < first


def test_an_engine_that_computes_the_models_own_version_otherwise_fails_the_job_at_once(tmp_path: Path) -> None:
    """As one does that lacks a part of the model: each of its processes says the same of version 0."""
    model = save_model(tmp_path / "model", factor=1.0)
    shutil.copytree(model, tmp_path / OTHER)
    tensors = load_file(tmp_path / OTHER / "model.safetensors")
    name = next(name for name in tensors if name.endswith("input_layernorm.weight"))
    save_file({**tensors, name: tensors[name] * 1.5}, tmp_path / OTHER / "model.safetensors", {"format": "pt"})
    manifest = make_manifest(tmp_path, rollout={"numRollouts": 4}, model={"path": str(model)})
    del manifest["spec"]["model"]["config"]
    with RunningJob(tmp_path, manifest, {FOLDER: str(tmp_path)}) as job:
        assert job.finish() == 64, job.stated()
        (event,) = [event for event in job.events() if event["reason"] == "EngineMismatch"]
        parts = ("compute version 0 of the model differently: ", "log-probs of the probe differ, by up to ", "token ")
        for part in parts:
            assert part in event["message"]
        assert "WrongWeights" not in {event["reason"] for event in job.events()}
        assert job.status()["restart"]["globalRestarts"] == 0
        job.assert_epoch(1)


def test_what_the_engine_states_is_believed_where_the_job_states_it(tmp_path: Path) -> None:
    manifest = make_simulated(tmp_path, rollout={"numRollouts": 20}, weightSync={"verify": "None"})
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path), {FOLDER: str(tmp_path)}) as job:
        job.wait_for_step(3)
        (tmp_path / DROPS).write_text(ALWAYS)
        job.assert_succeeded()
        assert max(trained_under(job)) >= min(dropped(tmp_path)), "what the test before would see"
