"""scripts/run_targets.py, by which `make test` and `make test-long` run their parts."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.children import die_with_tests

SCRIPT = Path(__file__).parents[2] / "scripts/run_targets.py"

MAKEFILE = """
early:
\t@echo early begins; sleep 0.3; echo early ends

late:
\t@until [ -e go ]; do sleep 0.05; done; echo late says $(WORDS)

red:
\t@echo red begins; exit 3

waits:
\t@touch began-$(N); sleep 600 & wait
"""


@pytest.fixture(autouse=True)
def makefile(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)


def start(folder: Path, *lanes: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, SCRIPT, *lanes],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=die_with_tests,
    )


def ends(printed: str) -> list[list[str]]:
    """Target and end of each closing line."""
    rows = re.findall(r"^  (.+?) +\d+ min +\d+ s  (.+)$", printed, re.MULTILINE)
    return [list(row) for row in rows]


def test_each_lane_stands_in_one_piece_and_all_go_on_after_a_red_target(tmp_path: Path) -> None:
    running = start(tmp_path, "early,red,late WORDS='one two'", "red,early")
    time.sleep(1)  # by now the second lane has ended, if it has not waited for the first
    (tmp_path / "go").touch()
    printed = running.communicate(timeout=240)[0]
    message = [line for line in printed.splitlines() if line.startswith(("early", "late", "red"))]
    first = ["early begins", "early ends", "red begins", "late says one two"]
    assert message == [*first, "red begins", "early begins", "early ends"]
    red = "RED, exit code 2"  # make's, whatever its recipe ended with
    assert ends(printed) == [
        ["early", "green"],
        ["red", red],
        ["late WORDS='one two'", "green"],
        ["red", red],
        ["early", "green"],
    ]
    assert running.returncode == 2


def test_all_green_ends_with_zero(tmp_path: Path) -> None:
    running = start(tmp_path, "early", "early,early")
    assert ends(running.communicate(timeout=240)[0]) == [["early", "green"]] * 3
    assert running.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_and_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    with start(tmp_path, "waits N=1,early", "waits N=2") as running:
        while not all((tmp_path / f"began-{n}").exists() for n in (1, 2)):
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(number)
        printed = running.communicate(timeout=240)[0]
    assert running.returncode == 128 + number
    assert ends(printed) == [["waits N=1", "cut off"], ["waits N=2", "cut off"]]
    assert "early" not in printed
    left = [path for path in Path("/proc").glob("[0-9]*") if is_in(path, tmp_path)]
    assert left == []


def is_in(process: Path, folder: Path) -> bool:
    """Whether a process works in a folder, as all do that make has started there."""
    try:
        return (process / "cwd").readlink() == folder
    except OSError:  # it has ended
        return False
