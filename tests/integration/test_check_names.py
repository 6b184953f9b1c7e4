"""The check of `make lint` that keeps private words out of names, on a repository of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/check_names.py"


def check(folder: Path, file: str, source: str) -> subprocess.CompletedProcess[str]:
    (folder / file).write_text(source)
    subprocess.run(["git", "init", "-q", folder], check=True)
    subprocess.run(["git", "-C", folder, "add", file], check=True)
    return subprocess.run([sys.executable, SCRIPT], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        pytest.param("def is_told() -> None: ...\n", "is_told: for 'told' the field says reported", id="a function"),
        pytest.param("class LastWords: ...\n", "LastWords: for 'words' the field says text, message", id="a class"),
        pytest.param(
            "def f(life: str) -> None: ...\n", "life: for 'life' the field says incarnation", id="a parameter"
        ),
        pytest.param("KEPT = 1\n", "KEPT: for 'kept' the field says retained", id="a constant"),
        pytest.param(
            "for said in []: ...\n", "said: for 'said' the field says stated, message", id="a loop's variable"
        ),
        pytest.param("import os as scene\n", "scene: for 'scene' the field says context", id="an alias"),
    ],
)
def test_a_private_name_is_refused(tmp_path: Path, source: str, sentence: str) -> None:
    checked = check(tmp_path, "module.py", source)
    assert (checked.returncode, checked.stderr) == (1, f"module.py:1: {sentence}\n")


def test_a_modules_own_name_counts(tmp_path: Path) -> None:
    assert "rank_lives.py:1: rank_lives: for 'lives'" in check(tmp_path, "rank_lives.py", "").stderr


def test_longer_names_fields_of_the_wire_and_text_are_let_through(tmp_path: Path) -> None:
    source = '"""Nobody said so."""\nlifetime = keyword = 1\nlast_words = "told"  # heard\n'
    checked = check(tmp_path, "module.py", source)
    assert (checked.returncode, checked.stderr) == (0, "")
