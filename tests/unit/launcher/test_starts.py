"""Starts of a container, counted over its lives."""

from pathlib import Path

from rljob_workers.launcher.starts import FILE, count_start


def test_each_start_counts_one_more(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert [count_start(folder) for _ in range(3)] == [0, 1, 2]
    assert [path.name for path in folder.iterdir()] == [FILE]


def test_half_a_number_begins_anew(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("")
    assert count_start(tmp_path) == 0
