"""An engine that answers `success` and has other weights is named, and nothing that it made of them is trained on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from rljob_cli.audit import read_lines
from tests.integration.preloaded.client import fork_program
from tests.integration.run.lying_engine import ALWAYS, DROPS, FOLDER

from .job import Process, RunningJob, at_leisure, make_manifest


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


@pytest.mark.parametrize("kind", ["Torch", "SGLang"])
def test_weights_that_an_engine_has_not_taken_are_loaded_anew(tmp_path: Path, kind: str) -> None:
    manifest = at_leisure(make_manifest(tmp_path, rollout={"numRollouts": 20}, roles=roles(kind)), tmp_path)
    with RunningJob(tmp_path, manifest, {FOLDER: str(tmp_path)}) as job:
        job.wait_for_step(3)
        (tmp_path / DROPS).write_text("1")
        event = job.wait_for_event("WrongWeights", role="rollout")
        (version,) = dropped(tmp_path)
        assert f"says that it has v{version}@1 and has other weights: " in event["message"]
        assert "log-probs of the probe differ" in event["message"]
        job.assert_succeeded()
        job.assert_epoch(1)


@pytest.mark.parametrize("kind", ["Torch", "SGLang"])
def test_a_job_whose_engine_takes_no_weights_ends_by_name_and_trains_nothing_from_them(
    tmp_path: Path, kind: str
) -> None:
    patience = {"maxGlobalRestarts": 1}
    manifest = make_manifest(tmp_path, rollout={"numRollouts": 20}, restartPolicy=patience, roles=roles(kind))
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path), {FOLDER: str(tmp_path)}) as job:
        job.wait_for_step(3)
        (tmp_path / DROPS).write_text(str(ALWAYS))
        assert job.finish() != 0
        first = min(dropped(tmp_path))
        ended = job.status()["restart"]["message"]
        assert ended.startswith("rollout-0.0 "), job.said()
        assert "WrongWeights" in job.said()
        assert max(trained_under(job)) < first


def test_what_the_engine_says_is_believed_where_the_job_says_so(tmp_path: Path) -> None:
    manifest = make_manifest(tmp_path, rollout={"numRollouts": 12}, weightSync={"verify": "None"})
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path), {FOLDER: str(tmp_path)}) as job:
        job.wait_for_step(3)
        (tmp_path / DROPS).write_text(str(ALWAYS))
        job.assert_succeeded()
        assert max(trained_under(job)) >= min(dropped(tmp_path)), "what the test before would see"
