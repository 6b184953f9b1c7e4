"""What a record deletes below the checkpoint path: no folder that stays, and no reference version that one names."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import CheckpointRecord
from rljob_workers.dcs.checkpoint_attempt import settle
from rljob_workers.dcs.checkpoint_folders import Retention, folder_name
from rljob_workers.dcs.checkpoint_layout import RECORDED_MARK, REFERENCE_FOLDER, Reference, reference_file
from rljob_workers.dcs.checkpoint_pruning import prune
from rljob_workers.models.share import WHOLE

INCARNATION = "0123456789ab"
EPOCH = 2
INTERVAL = 3
"""refUpdateInterval."""


def reference_of(version: int) -> str:
    return f"{version // INTERVAL * INTERVAL}-e{EPOCH}-{INCARNATION}.safetensors"


def record(root: Path, version: int) -> str:
    """A recorded folder that measures against the last multiple of the interval, which is kept below `reference`."""
    name = folder_name(version, EPOCH, INCARNATION)
    (root / name).mkdir()
    (root / name / RECORDED_MARK).touch()
    named = {"version": version // INTERVAL * INTERVAL, "file": reference_of(version), "checksum": ""}
    (root / name / reference_file(WHOLE)).write_text(json.dumps(named))
    (root / REFERENCE_FOLDER / reference_of(version)).touch()
    return name


@given(steps=st.lists(st.integers(1, 4), min_size=1, max_size=12), keep=st.integers(1, 3), every=st.integers(1, 6))
def test_what_stays_has_its_reference(steps: list[int], keep: int, every: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / REFERENCE_FOLDER).mkdir()
        recorded: list[int] = []
        for step in steps:
            recorded.append((recorded or [0])[-1] + step)
            current = Reference(recorded[-1] // INTERVAL * INTERVAL, reference_of(recorded[-1]), "")
            prune(root, record(root, recorded[-1]), EPOCH, Retention(keep, every), [current])
        stay = {version for version in recorded if version % every == 0} | set(recorded[-keep:])
        assert {path.name for path in root.glob("*-e*")} == {folder_name(one, EPOCH, INCARNATION) for one in stay}
        references = {path.name for path in (root / REFERENCE_FOLDER).iterdir()}
        assert references == {reference_of(version) for version in stay}


def test_files_of_the_user_stay(tmp_path: Path) -> None:
    """`checkpoint.path` may be a folder that has more than checkpoints."""
    theirs = [".deleted-photos/one.png", "1-e1-mine/model.bin", "sft/reference.json", "reference/2024-eval.safetensors"]
    theirs += ["reference/1-e1-mine.safetensors", "latest"]
    for name in theirs:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    for version in (1, 2):
        prune(tmp_path, record(tmp_path, version), EPOCH, Retention(1, None), [])
        settle(
            tmp_path,
            CheckpointRecord(
                id=WeightId(lineage=1, version=version),
                epoch=EPOCH,
                folder=folder_name(version, EPOCH, INCARNATION),
                checksums={},
                ancestry={},
            ),
        )
    assert all((tmp_path / name).read_text() == "{}" for name in theirs)
    assert not (tmp_path / folder_name(1, EPOCH, INCARNATION)).exists()
