"""Damage is reported from storage that gives an error, for each kind of file of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from rljob_api.cluster import CRITIC_PART
from rljob_api.names import Lineage, Role, WeightVersion
from rljob_api.wire.checkpoints import CheckpointRecord
from rljob_api.wire.identity import WeightId
from rljob_workers.dcs.checkpoints.on_disk import (
    expected_checksums,
    file_checksum,
    file_of,
    owner_of,
    read_record,
    verify,
    write_record,
    write_synced,
)
from rljob_workers.dcs.errors import CheckpointDamaged, CheckpointUnreadable

FOLDER = "4-e1-aaaaaaaaaaaa"
FILES = ("model.safetensors", "actor-00000.safetensors", "actor-00000.json", "config.json", "tickets.json")
REFERENCE = "reference/0-e1-aaaaaaaaaaaa.safetensors"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def take_away(path: Path) -> None:
    path.unlink()


def give_an_io_error(path: Path) -> None:
    path.unlink()
    path.symlink_to("/proc/self/mem")  # whose first page gives EIO to every reader


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A recorded checkpoint with a reference version."""
    (tmp_path / FOLDER).mkdir()
    (tmp_path / "reference").mkdir()
    checksums = {name: write_synced(tmp_path / FOLDER / name, [f"bytes of {name}".encode()]) for name in FILES}
    digest = write_synced(tmp_path / REFERENCE, [b"bytes of the reference"])
    named = json.dumps({"version": 0, "file": Path(REFERENCE).name, "checksum": digest}).encode()
    checksums["reference.json"] = write_synced(tmp_path / FOLDER / "reference.json", [named])
    recorded = write_synced(tmp_path / FOLDER / "checksums.json", [json.dumps(checksums).encode()])
    write_record(
        tmp_path,
        CheckpointRecord(
            id=WeightId(lineage=Lineage(1), version=WeightVersion(4)),
            epoch=1,
            folder=FOLDER,
            checksums={"checksums.json": recorded},
            ancestry={"1": -1},
        ),
    )
    return tmp_path


@pytest.mark.parametrize(
    ("role", "name", "file"),
    [
        (Role.ACTOR, "model.safetensors", "model.safetensors"),
        (Role.CRITIC, "model.safetensors", "critic/model.safetensors"),
        (Role.CRITIC, "critic-00000.json", "critic/critic-00000.json"),
    ],
)
def test_each_role_has_a_place_of_its_own(role: Role, name: str, file: str) -> None:
    assert file_of(role, name) == file
    assert owner_of(file) is role


def test_a_clone_finds_the_critic_s_part() -> None:
    assert file_of(Role.CRITIC, "") == f"{CRITIC_PART}/"


def test_what_only_begins_like_a_role_is_the_leading_one_s() -> None:
    assert owner_of("critic-00000.json") is Role.ACTOR
    assert owner_of("critics/model.safetensors") is Role.ACTOR


@pytest.fixture
def of_both(root: Path) -> Path:
    """A recorded checkpoint with a part of the critic, and without a reference version."""
    folder = root / FOLDER
    (folder / "reference.json").unlink()
    (folder / "critic").mkdir()
    names = (*FILES, *(f"critic/{name}" for name in ("model.safetensors", "critic-00000.json")))
    checksums = {name: write_synced(folder / name, [f"bytes of {name}".encode()]) for name in names}
    write_synced(folder / "checksums.json", [json.dumps(checksums).encode()])
    return root


def names_of(expected: Mapping[Path, str]) -> set[str]:
    return {
        path.relative_to(path.parents[0] if path.parent.name == FOLDER else path.parents[1]).as_posix()
        for path in expected
    }


def test_a_role_expects_its_own_files(of_both: Path) -> None:
    """The digest of the file of checksums is another one in the record: as no file is left out, the files prove it."""
    assert names_of(expected_checksums(of_both, FOLDER)) == set(FILES)
    of_critic = expected_checksums(of_both, FOLDER, Role.CRITIC)
    assert names_of(of_critic) == {"critic/model.safetensors", "critic/critic-00000.json"}


def test_a_file_of_checksums_that_leaves_a_role_out_is_not_proved(of_both: Path) -> None:
    """Were it believed, the critic would begin anew beside a policy that goes on."""
    checksums = of_both / FOLDER / "checksums.json"
    checksums.write_text(
        json.dumps({name: one for name, one in json.loads(checksums.read_text()).items() if "/" not in name})
    )
    assert expected_checksums(of_both, FOLDER, Role.CRITIC) == {}
    assert names_of(expected_checksums(of_both, FOLDER)) == {*FILES, "checksums.json"}


def test_a_role_that_is_not_recorded_expects_nothing(root: Path) -> None:
    assert expected_checksums(root, FOLDER, Role.CRITIC) == {}


def verify_all(root: Path) -> None:
    for path, checksum in expected_checksums(root, FOLDER).items():
        verify(path, checksum)


@pytest.mark.parametrize("file", [*(f"{FOLDER}/{name}" for name in (*FILES, "reference.json")), REFERENCE])
@pytest.mark.parametrize("harm", [truncate, flip, take_away])
def test_a_damaged_file_is_named(root: Path, file: str, harm: Callable[[Path], None]) -> None:
    verify_all(root)
    harm(root / file)
    with pytest.raises(CheckpointDamaged) as caught:
        verify_all(root)
    assert caught.value.path == root / file
    assert str(caught.value).startswith(f"checkpoint: {root / file} ")


@pytest.mark.parametrize("harm", [truncate, flip, take_away])
def test_a_damaged_file_of_checksums_is_damage_whichever_file_it_is_blamed_on(
    root: Path, harm: Callable[[Path], None]
) -> None:
    harm(root / FOLDER / "checksums.json")
    with pytest.raises(CheckpointDamaged):
        verify_all(root)


@pytest.mark.parametrize("file", [*(f"{FOLDER}/{name}" for name in (*FILES, "checksums.json")), REFERENCE])
def test_an_io_error_is_no_damage(root: Path, file: str) -> None:
    give_an_io_error(root / file)
    with pytest.raises(CheckpointUnreadable, match=r"cannot be read \(\[Errno 5\] Input/output error"):
        verify_all(root)


def change_its_version(path: Path) -> None:
    path.write_text(path.read_text().replace('"version": 4', '"version": 5'))


@pytest.mark.parametrize("harm", [truncate, take_away, change_its_version])
def test_a_damaged_record_file_is_none_and_leaves_the_folder_as_good_as_it_is(
    root: Path, harm: Callable[[Path], None]
) -> None:
    harm(root / "record.json")
    assert read_record(root) is None
    verify_all(root)


def flip_a_digest(path: Path) -> None:
    """Of the record file, which stays one."""
    record = json.loads(path.read_text())
    record["checksums"]["checksums.json"] = record["checksums"]["checksums.json"][::-1]
    path.write_text(json.dumps(record))


def test_a_folder_whose_checksums_prove_it_is_as_good_as_it_is_whatever_the_record_states(root: Path) -> None:
    flip_a_digest(root / "record.json")
    verify_all(root)
    (root / FOLDER / "RECORDED").touch()
    verify_all(root)


def test_checksums_that_leave_a_file_out_prove_nothing(root: Path) -> None:
    write_synced(root / FOLDER / "checksums.json", [b"{}"])
    with pytest.raises(CheckpointDamaged, match=r"checksums\.json has checksum"):
        verify_all(root)


def test_any_byte_of_a_file_of_checksums_is_missed(root: Path) -> None:
    """Where it proves the folder, its own digest is not asked for."""
    file = root / FOLDER / "checksums.json"
    content = file.read_bytes()
    for place in range(len(content)):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(CheckpointDamaged):
            verify_all(root)


def test_a_record_file_that_gives_an_io_error_is_not_taken_for_none(root: Path) -> None:
    give_an_io_error(root / "record.json")
    with pytest.raises(CheckpointUnreadable):
        read_record(root)


@pytest.mark.parametrize("content", ["100 m in 9.58 s", '{"record": 9.58}'])
def test_a_file_that_is_no_record_is_retained_beside_the_record_that_takes_its_name(root: Path, content: str) -> None:
    record = read_record(root)
    assert record is not None
    write_record(root, record)
    assert not (root / "record.json.damaged").exists()
    (root / "record.json").write_text(content)
    write_record(root, record)
    assert (root / "record.json.damaged").read_text() == content
    assert read_record(root) == record


def test_a_folder_in_the_place_of_a_file_is_damage(root: Path) -> None:
    checksum = file_checksum(root / FOLDER / "config.json")
    take_away(root / FOLDER / "config.json")
    (root / FOLDER / "config.json").mkdir()
    with pytest.raises(CheckpointDamaged, match="is no file"):
        verify(root / FOLDER / "config.json", checksum)
