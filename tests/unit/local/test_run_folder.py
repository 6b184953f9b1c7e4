"""What a run folder remembers of the run before."""

import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rljob_api.names import Epoch, WeightVersion
from rljob_api.spec import RLJob
from rljob_api.status import RestartStatus, RLJobStatus
from rljob_api.wire.observation import CoordinatorEvent, EventKind
from rljob_api.wire.ranks import StepReport
from rljob_operator.local.errors import RunRefused
from rljob_operator.local.journal import Journal, summary
from rljob_operator.local.run_folder import RunFolder
from rljob_operator.local.view import JsonView
from tests.power_cuts import noted_syncs
from tests.unit.api.manifests import changed

RUNNING = Path(__file__).parents[3] / "docs/running.md"


def test_a_run_goes_on_under_another_name(tmp_path: Path) -> None:
    """The folder of a job whose name is not taken any more is gone on with."""
    before = json.loads(RLJob.model_validate(changed({})).model_dump_json(by_alias=True))
    before["metadata"]["name"] = "7b-math"
    (tmp_path / "job.json").write_text(json.dumps(before))
    (tmp_path / "status.json").write_text(RLJobStatus(restart=RestartStatus(epoch=1)).model_dump_json(by_alias=True))
    folder = RunFolder.open(tmp_path, fresh=False)
    folder.begin(RLJob.model_validate(changed({"metadata.name": "math-7b"})))
    with pytest.raises(RunRefused, match=r"^spec\.seed: 5 differs from"):
        folder.begin(RLJob.model_validate(changed({"metadata.name": "math-7b", "spec.seed": 5})))
    folder.close()


def test_a_changed_manifest_states_what_changed_and_the_one_before_is_retained(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, fresh=False)
    first = RLJob.model_validate(changed({"spec.rollout.numRollouts": 5}))
    folder.begin(first)
    assert folder.write_manifest(first) == ""
    assert folder.write_manifest(first) == ""
    for number, rollouts in ((1, 7), (2, 9)):
        before = (tmp_path / "job.json").read_bytes()
        change = {"spec.rollout.numRollouts": rollouts, "spec.checkpoint.keepEvery": 3}
        message = folder.write_manifest(RLJob.model_validate(changed(change)))
        assert f"spec.rollout.numRollouts: {rollouts - 2} -> {rollouts}" in message
        assert ("spec.checkpoint.keepEvery: null -> 3" in message) == (number == 1)
        assert message.endswith(f"; the manifest of before is kept as job.{number}.json")
        assert (tmp_path / f"job.{number}.json").read_bytes() == before
    folder.close()


def test_a_power_cut_takes_no_decision(tmp_path: Path) -> None:
    journal = Journal(tmp_path, JsonView(io.StringIO()), RLJobStatus())
    with noted_syncs() as disk:
        journal.flush()
        assert disk.lost(tmp_path / "status.json") is None


def test_steps_that_were_taken_back_are_marked_and_can_be_left_out(tmp_path: Path) -> None:
    """By the line of docs/running.md, and in the summary."""
    journal = Journal(tmp_path, JsonView(printed := io.StringIO()), RLJobStatus())
    trained = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 2), (3, 2)]
    for epoch, step in trained:
        figures: dict[str, Any] = {
            "reward": epoch,
            "loss": 0.0,
            "staleness": 0,
            "samples": 1,
            "tokens": 1,
            "seconds": 1.0,
        }
        report = StepReport.model_construct(**figures, step=step, version=WeightVersion(step), metrics={})
        kind, number = EventKind.STEP_TRAINED, Epoch(epoch)
        journal.record(CoordinatorEvent(id=1, kind=kind, at=1.0, epoch=number, message="", step=report))
    assert len(printed.getvalue().splitlines()) == len(set(trained))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    marked = {(line["epoch"], line["step"]): line.get("restates") for line in lines}
    assert marked == {**dict.fromkeys(trained[:4]), (2, 1): 1, (2, 2): 1, (3, 2): 2}
    assert summary(tmp_path, RLJobStatus(), 1.0, "")["steps"] == 3
    (command,) = re.findall(r"^\$ (jq .* metrics\.jsonl)$", RUNNING.read_text(), re.MULTILINE)
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    message = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert [tuple(map(json.loads(line).get, ("epoch", "step"))) for line in message.splitlines()] == [
        (1, 0),
        (2, 1),
        (3, 2),
    ]
