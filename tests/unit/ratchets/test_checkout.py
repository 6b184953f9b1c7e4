"""This checkout is within its bounds; a checkout that is not is named, and nothing is lowered then."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.ratchets.__main__ import FILE, main
from tests.ratchets.bounds import above, parse, unmatched
from tests.ratchets.figures import PACKAGES

ROOT = Path(__file__).parents[3]
PASSES = 'SAMPLE_PASSES = ("beat",)\nRANK_PASSES = ("a", "b")\nROOTS = ("c",)\n'


def test_no_figure_of_this_checkout_is_above_its_bound() -> None:
    """The command prints the figures that are compared."""
    command = [str(ROOT / "scripts/ratchets"), "--output", "json"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, text=True).stdout
    figures = {name: found["is"] for name, found in json.loads(printed).items()}
    bounds = parse((ROOT / FILE).read_text())
    assert [*above(figures, bounds), *unmatched(figures, bounds)] == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
    (tmp_path / "cli/box.py").write_text('"""Of a box."""\nclass Box:\n    """Holds."""\n')
    (tmp_path / "crds/box.py").write_text('"""A box."""\n\n\nclass Box:\n    def open(self) -> None:\n        pass\n')
    (tmp_path / "scripts/walks").mkdir(parents=True)
    (tmp_path / "scripts/walks/count.py").write_text(PASSES)
    (tmp_path / "README.md").write_text("# What a box is\n\nA box.\n")
    (tmp_path / "tests").mkdir()
    assert main(["--write"], tmp_path) == 0
    return tmp_path


def test_the_first_bounds_are_the_figures(checkout: Path) -> None:
    figures = parse((checkout / FILE).read_text()).figures
    assert {name: value for name, value in figures.items() if value} == {
        "tracer.passages": 3,
        "sizes.file.median": 1,
        "sizes.file.p90": 3,
        "sizes.file.largest": 3,
        "sizes.function.median": 2,
        "sizes.function.p90": 2,
        "sizes.function.largest": 2,
        "openings.docstrings": 1,
        "openings.pages": 1,
        "recurring.file_names": 1,
        "recurring.class_names": 1,
        "code_lines.crds": 3,
        "code_lines.cli": 1,
    }


def test_a_figure_that_falls_takes_its_bound_along(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "cli/box.py").write_text('"""A box."""\nCRATE = 1\n')
    assert main(["--write"], checkout) == 0
    figures = parse((checkout / FILE).read_text()).figures
    assert [figures[name] for name in ("openings.docstrings", "recurring.class_names")] == [0, 0]
    assert "openings.docstrings               0      1  has fallen" in capsys.readouterr().out


def test_a_figure_that_grows_lowers_no_bound(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "cli/box.py").write_text("")
    (checkout / "crds/more.py").write_text('"""By name."""\n\n"""What else."""\n\nx = 1\n')
    before = (checkout / FILE).read_text()
    assert main(["--write"], checkout) == 1
    assert (checkout / FILE).read_text() == before
    refused = capsys.readouterr().err.splitlines()
    assert [sentence.split(":")[0] for sentence in refused] == [
        "openings.docstrings is 2 and may be 1 at most (tests/ratchets.toml)",
        "code_lines.crds is 4 and may be 3 at most (tests/ratchets.toml)",
    ]


def test_sentences_and_sizes_are_listed_with_their_places(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sentences", "--worst", "1"], checkout) == 0
    printed = capsys.readouterr().out
    assert "cli/box.py:1  docstrings: Of a box." in printed
    assert "README.md:1  pages: What a box is" in printed
    assert "crds/box.py  3 lines" in printed
    assert "crds/box.py:5  open: 2 lines" in printed
