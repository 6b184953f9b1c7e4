"""What a run folder remembers of the run before."""

import json
from pathlib import Path

import pytest

from rljob_api.spec import RLJob
from rljob_api.status import RestartStatus, RLJobStatus
from rljob_operator.local.errors import RunRefused
from rljob_operator.local.run_folder import RunFolder
from tests.power_cuts import noted_syncs
from tests.unit.api.manifests import changed


def test_a_run_goes_on_under_another_name(tmp_path: Path) -> None:
    """Release 0.1.0 took names that begin with a digit: its folders are gone on with."""
    before = json.loads(RLJob.model_validate(changed({})).model_dump_json(by_alias=True))
    before["metadata"]["name"] = "7b-math"
    (tmp_path / "job.json").write_text(json.dumps(before))
    (tmp_path / "status.json").write_text(RLJobStatus(restart=RestartStatus(epoch=1)).model_dump_json(by_alias=True))
    folder = RunFolder.open(tmp_path, fresh=False)
    folder.begin(RLJob.model_validate(changed({"metadata.name": "math-7b"})))
    with pytest.raises(RunRefused, match=r"^spec\.seed: 5 differs from"):
        folder.begin(RLJob.model_validate(changed({"metadata.name": "math-7b", "spec.seed": 5})))
    folder.close()


def test_a_changed_manifest_says_what_changed_and_the_one_before_is_kept(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, fresh=False)
    first = RLJob.model_validate(changed({"spec.rollout.numRollouts": 5}))
    folder.begin(first)
    assert folder.write_manifest(first) == ""
    assert folder.write_manifest(first) == ""
    for number, rollouts in ((1, 7), (2, 9)):
        before = (tmp_path / "job.json").read_bytes()
        change = {"spec.rollout.numRollouts": rollouts, "spec.checkpoint.keepEvery": 3}
        said = folder.write_manifest(RLJob.model_validate(changed(change)))
        assert f"spec.rollout.numRollouts: {rollouts - 2} -> {rollouts}" in said
        assert ("spec.checkpoint.keepEvery: null -> 3" in said) == (number == 1)
        assert said.endswith(f"; the manifest of before is kept as job.{number}.json")
        assert (tmp_path / f"job.{number}.json").read_bytes() == before
    folder.close()


def test_a_power_cut_takes_no_decision(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, fresh=False)
    with noted_syncs() as disk:
        folder.write_status(RLJobStatus(), durable=True)
        assert disk.lost(tmp_path / "status.json") is None
    folder.close()
