"""What the pages say of an installation: every extra has a line, and shells are told how to complete."""

import re
import tomllib
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class

from rljob_cli.main import cli

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_HEAD = "| extra | what it is for |\n"


def test_every_extra_has_a_line_with_what_it_brings() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (page,) = [text for page in PAGES if _HEAD in (text := page.read_text())]
    rows = page.split(_HEAD)[1].split("\n\n")[0].splitlines()[1:]
    named: list[str] = []
    for row in rows:
        first, meaning = row.strip("|").split("|", 1)
        assert len(meaning.strip()) > 10, row
        named += re.findall(r"`([\w-]+)`", first)
    assert sorted(named) == sorted(extras)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_page_states_how_a_shell_completes(shell: str) -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert f"{shell}_source" in text
    assert "_RLJOB_COMPLETE=bash_source rljob" in text
    completion = get_completion_class(shell)
    assert completion is not None
    if shell != "bash":  # which click starts, to ask for its version: tests/integration/test_completion.py
        assert f"_RLJOB_COMPLETE={shell}_complete" in completion(cli, {}, "rljob", "_RLJOB_COMPLETE").source()
