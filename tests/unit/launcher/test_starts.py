"""Starts of a container, counted over its incarnations."""

import os
import subprocess
import sys
from pathlib import Path

from rljob_workers.launcher.preload import FILE, count_start


def test_each_start_counts_one_more(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert [count_start(folder) for _ in range(3)] == [0, 1, 2]
    assert [path.name for path in folder.iterdir()] == [FILE]


def test_half_a_number_begins_again(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("")
    assert count_start(tmp_path) == 0


def test_a_container_that_may_not_count_ends_with_a_sentence(tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.touch()
    command = [sys.executable, "-m", "rljob_workers.launcher.pod"]
    ended = subprocess.run(
        command, env={**os.environ, "RLJOB_ROOT": str(root)}, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 64
    assert ended.stderr.startswith(f"{root}/run/rljob: Not a directory. Mount a folder there")
