"""Folders of a run in memory: with room or on the disk, swept, and of this user alone."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from rljob_api.machine.room import FileSystem
from rljob_operator.local.errors import RunRefused
from rljob_operator.local.memory_folders import memory_folder, memory_folders, memory_paths, memory_place

SYSTEMS = (FileSystem(Path("/dev/shm"), 64 << 20, 60 << 20), FileSystem(Path("/"), 1 << 40, 1 << 30))


@pytest.mark.parametrize(
    ("needed", "expected", "sentence"),
    [
        (60 << 20, 0, ""),
        ((60 << 20) + 1, 1, "about 60 MiB of memory, which /dev/shm (64 MiB, of which 60 MiB are free) has not"),
        (1 << 30, 1, "docker run --shm-size=1024m"),
    ],
    ids=["memory that just suffices", "one byte more goes to the disk", "with the cure"],
)
def test_weights_go_to_the_disk_where_shared_memory_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: int, expected: int, sentence: str
) -> None:
    monkeypatch.setattr(FileSystem, "of", lambda folder: SYSTEMS[0 if folder.is_relative_to("/dev/shm") else 1])
    found = memory_place(tmp_path / "run", needed)
    assert found.path == memory_paths(tmp_path / "run")[expected]
    assert sentence in found.note
    assert bool(found.note) is bool(expected)


def test_sockets_stay_in_memory_where_weights_go_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of sockets must be short, and those of a temporary folder may be long."""
    monkeypatch.setattr(FileSystem, "of", lambda folder: SYSTEMS[0 if folder.is_relative_to("/dev/shm") else 1])
    memory, disk = paths = memory_paths(tmp_path / "run")
    try:
        found = memory_folders(tmp_path / "run", 1 << 30)
        assert (found.sockets, found.weights) == (memory, disk / "weights")
        assert found.sockets.is_dir()
        assert found.weights.is_dir()
    finally:
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)


def test_where_neither_has_room_the_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunRefused) as refused:
        memory_place(tmp_path / "run", 1 << 50)
    assert "about 1024 TiB of memory, and neither of /dev/shm (" in str(refused.value)
    assert "docker run --shm-size=1073741824m (or --ipc=host)" in str(refused.value)


def test_what_a_killed_start_left_is_swept_from_both(tmp_path: Path) -> None:
    paths = memory_paths(tmp_path / "run")
    assert len(paths) == 2
    for path in paths:
        (path / "weights").mkdir(parents=True)
    try:
        memory_place(tmp_path / "run", 0)
        assert [list(path.iterdir()) for path in paths] == [[], []]
    finally:
        for path in paths:
            path.rmdir()


@pytest.mark.parametrize("is_dangling", [False, True], ids=["of a folder", "of nothing"])
def test_a_link_that_is_made_while_the_folder_is_being_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dangling: bool
) -> None:
    target, run = tmp_path / "target", tmp_path / "run"
    if not is_dangling:
        target.mkdir()
    folder, mkdir = memory_paths(run)[0], Path.mkdir

    def raced(self: Path, *arguments: Any, **named: Any) -> None:
        if self == folder:
            folder.symlink_to(target)
        mkdir(self, *arguments, **named)

    monkeypatch.setattr(Path, "mkdir", raced)
    try:
        with pytest.raises(RunRefused, match="belongs to somebody else"):
            memory_folders(run, 0)
    finally:
        folder.unlink()


def test_a_link_in_the_place_of_the_folder_in_memory_is_not_swept(tmp_path: Path) -> None:
    """In `/dev/shm` everybody may make one, to whatever he wants to be emptied."""
    precious, run = tmp_path / "precious", tmp_path / "run"
    precious.mkdir()
    (precious / "file").touch()
    folder = memory_paths(run)[0]
    folder.symlink_to(precious)
    try:
        with pytest.raises(RunRefused, match="belongs to somebody else"):
            memory_folder(run)
    finally:
        folder.unlink()
    assert (precious / "file").exists()
