"""The Python door with real runs: steps that a kill repeats, a run that goes on, the page and the notebook."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rljob import Job, load_run, run
from rljob_cli.starters import files_of
from tests.integration.run.job import HURRY, at_leisure, make_simulated

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/python.md"
NOTEBOOK = ROOT / "examples/quickstart.ipynb"

pytestmark = pytest.mark.long


def rank_of(status: dict[str, Any], role: str) -> int:
    (pod, *_) = next(row for row in status["roles"] if row["name"] == role)["pods"]
    return int(pod["ranks"][0]["pid"])


def test_steps_that_a_kill_repeats_come_again_and_replace_the_earlier_ones(tmp_path: Path) -> None:
    manifest = at_leisure(make_simulated(tmp_path, checkpoint={"everySteps": 4}), tmp_path)
    job = Job.from_dict(manifest, {"rollout.numRollouts": 12})
    retained: dict[int, dict[str, Any]] = {}
    came: list[tuple[int, int]] = []
    with run(job, out=tmp_path / "out", audit=True) as going:
        for step in going:
            if not retained and step["step"] == 0:
                first_epoch = step["epoch"]
            came.append((step["step"], step["epoch"]))
            assert step.get("restates", 0) < step["epoch"]
            retained[step["step"]] = step
            if step["step"] == 5 and step["epoch"] == first_epoch:  # two steps before the next record
                os.kill(rank_of(going.status(), "rollout"), signal.SIGKILL)
            if step["epoch"] > first_epoch:
                (tmp_path / HURRY).touch()
    assert going.result().succeeded
    assert going.result().global_restarts == 1
    assert len(came) == len(set(came)) > 12, "a step was lost with the kill, and trained again"
    assert sorted(retained) == list(range(12))
    standing = going.metrics()
    assert [row["step"] for row in standing] == list(range(12))
    assert [row["epoch"] for row in standing] == [retained[number]["epoch"] for number in range(12)]
    assert load_run(tmp_path / "out").metrics() == standing


def with_quickstart(folder: Path) -> dict[str, str]:
    """The environment of a program that begins in a folder with the quickstart."""
    for name, text in files_of("quickstart").items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def test_all_of_the_page_runs(tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    (tmp_path / "page.py").write_text(code)
    command = [sys.executable, "page.py"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=with_quickstart(tmp_path), capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert [line.split()[0] for line in ended.stdout.splitlines()[-2:]] == ["0.0005", "0.002"]


def test_the_notebook_runs(tmp_path: Path) -> None:
    """By Jupyter where that is installed, else its cells as a program."""
    environment = with_quickstart(tmp_path)
    try:
        import nbclient
        import nbformat
    except ImportError:
        cells = json.loads(NOTEBOOK.read_text())["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        command = [sys.executable, "-c", f"{code}\nassert len(rows) == 4"]
        subprocess.run(command, cwd=tmp_path, env=environment, timeout=600, check=True)
        return
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (last,) = notebook.cells[-1].outputs
    assert last["data"]["text/plain"].count("(") == 4
