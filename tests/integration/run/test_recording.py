"""The picture of a kill and its recovery in docs/running.md is made of what a real run prints."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from .job import at_leisure, make_simulated

RECORD = Path(__file__).parents[3] / "scripts/record_recovery.py"
PICTURE = Path(__file__).parents[3] / "docs/recovery.svg"


def shown(svg: str) -> str:
    """The text of the picture, a row a line."""
    return "\n".join(
        "".join(each.itertext()) for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("text")
    )


def assert_shows_a_recovery(text: str) -> None:
    steps = [
        r"\$ rljob run ",
        r"\$ kill -KILL \d+ +# .*actor-0",
        r"RankExited \[Global\]: actor-0\.0 was killed by SIGKILL",
    ]
    steps += [
        "EpochOpened: epoch 2 is open",
        "Ready: every role is ready in epoch 2",
        "Succeeded: all ",
        r"\$ rljob audit ",
    ]
    steps += ["Holds: every sample was trained exactly once"]
    assert re.search(".*".join(steps), text, re.DOTALL), text


@pytest.mark.long
def test_a_run_is_recorded_from_its_command_to_the_proof(tmp_path: Path) -> None:
    manifest = at_leisure(make_simulated(tmp_path, rollout={"numRollouts": 8}), tmp_path, seconds=0.5)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))
    command = [sys.executable, str(RECORD), str(tmp_path / "job.yaml"), "--after", "2"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert made.returncode == 0, made.stderr
    assert_shows_a_recovery(shown(made.stdout))


def test_the_picture_of_the_readme_is_one() -> None:
    assert_shows_a_recovery(shown(PICTURE.read_text()))
