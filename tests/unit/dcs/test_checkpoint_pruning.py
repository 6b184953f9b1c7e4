"""What a record deletes below the checkpoint path: no folder that stays, and no reference version that one names."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.wire.checkpoints import CheckpointRecord
from rljob_api.wire.identity import WeightId
from rljob_workers.dcs.checkpoints.attempt import settle
from rljob_workers.dcs.checkpoints.on_disk import (
    CHECKSUMS_FILE,
    DAMAGED_SUFFIX,
    RECORDED_MARK,
    REFERENCE_FOLDER,
    Reference,
    folder_name,
    partial_name,
    reference_file,
    write_synced,
)
from rljob_workers.dcs.checkpoints.retention import Retention, prune
from rljob_workers.models.blob import WHOLE
from tests.unit.dcs.test_checkpoint_on_disk import flip, give_an_io_error, take_away, truncate

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
    note = write_synced(root / name / reference_file(WHOLE), [json.dumps(named).encode()])
    write_synced(root / name / CHECKSUMS_FILE, [json.dumps({reference_file(WHOLE): note}).encode()])
    (root / REFERENCE_FOLDER).mkdir(exist_ok=True)
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
        retained = {path.name for path in (root / REFERENCE_FOLDER).iterdir()}
        assert retained == {reference_of(version) for version in stay}


def references(root: Path) -> set[int]:
    return {int(path.name.partition("-")[0]) for path in (root / REFERENCE_FOLDER).iterdir()}


def name_another_version(note: Path) -> None:
    note.write_text(note.read_text().replace('"file": "6-', '"file": "7-'))


def name_a_list(note: Path) -> None:
    note.write_text('{"version": 6, "file": [], "checksum": ""}')


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        *((reference_file(WHOLE), harm) for harm in (flip, truncate, take_away, name_another_version, name_a_list)),
        (reference_file(WHOLE), give_an_io_error),
        *((CHECKSUMS_FILE, harm) for harm in (flip, truncate, take_away, give_an_io_error)),
    ],
)
def test_what_a_folder_with_damaged_notes_may_name_stays(
    tmp_path: Path, file: str, harm: Callable[[Path], None]
) -> None:
    """And the writer goes on: the damage of an older folder is of no concern to a new one."""
    folders = [record(tmp_path, version) for version in (3, 6, 9)]
    for orphan in (0, 7):
        (tmp_path / REFERENCE_FOLDER / f"{orphan}-e{EPOCH}-{INCARNATION}.safetensors").touch()
    harm(tmp_path / folders[1] / file)
    prune(tmp_path, folders[2], EPOCH, Retention(3, None), [Reference(9, reference_of(9), "")])
    assert references(tmp_path) == {0, 3, 6, 9}


@pytest.mark.parametrize("content", ["", '{"version": 6, "fi', '{"version": 6, "file": [], "checksum": ""}', "[]"])
def test_a_note_that_is_still_being_written_takes_nothing_and_stops_nothing(tmp_path: Path, content: str) -> None:
    """By another rank of the gang, whose next part is begun while the leader deletes."""
    for version in (3, 6, 9):
        recorded = record(tmp_path, version)
    partial = tmp_path / partial_name(folder_name(10, EPOCH, INCARNATION))
    partial.mkdir()
    (partial / reference_file(WHOLE)).write_text(content)
    prune(tmp_path, recorded, EPOCH, Retention(2, None), [Reference(9, reference_of(9), "")])
    assert {6, 9} <= references(tmp_path)


def test_a_folder_that_was_put_aside_as_damaged_keeps_its_reference(tmp_path: Path) -> None:
    aside = record(tmp_path, 3)
    (tmp_path / aside).rename(tmp_path / f"{aside}{DAMAGED_SUFFIX}")
    for version in (6, 9):
        in_use = [Reference(version, reference_of(version), "")]
        prune(tmp_path, record(tmp_path, version), EPOCH, Retention(1, None), in_use)
    assert references(tmp_path) == {3, 9}


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
