"""`rljob init` writes what the examples have, and nothing over a file."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from rljob_cli.main import cli
from rljob_cli.starters import STARTERS, files_of

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", STARTERS)
def test_a_starter_is_its_example(name: str) -> None:
    for path, text in files_of(name).items():
        example = (ROOT / "examples" / path).read_text()
        if path.endswith(".yaml"):
            assert yaml.safe_load(text) == yaml.safe_load(example)
        else:
            assert text == example


def test_what_is_written_is_valid(tmp_path: Path) -> None:
    made = CliRunner().invoke(cli, ["init", "quickstart", "--to", str(tmp_path / "new")])
    manifest = tmp_path / "new/quickstart.yaml"
    data = tmp_path / "new/data/reverse-and-end.jsonl"
    assert (made.exit_code, made.output) == (0, f"Wrote {manifest}, {data}. Try: rljob run {manifest}\n")
    assert CliRunner().invoke(cli, ["validate", str(manifest)]).output == f"{manifest} is valid.\n"


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_text("mine")
    refused = CliRunner().invoke(cli, ["init", "quickstart", "--to", str(tmp_path)])
    sentence = f"--to: {tmp_path / 'quickstart.yaml'} is there already. Give another folder, or move it away.\n"
    assert (refused.exit_code, refused.stderr) == (64, sentence)
    assert [path.name for path in tmp_path.iterdir()] == ["quickstart.yaml"]
    assert (tmp_path / "quickstart.yaml").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = CliRunner().invoke(cli, ["init", "quickstart", "--to", str(tmp_path / "file/below")])
    assert refused.exit_code == 64
    assert refused.stderr.endswith("cannot be written (Not a directory). Give another folder.\n")
