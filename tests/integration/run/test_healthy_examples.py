"""Whole runs of the examples, as their first lines name the command: they succeed, and their steps show no trouble."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = (
    "quickstart.yaml",
    "ppo-critic.yaml",
    "calculator/job.yaml",
    "custom-algorithm/job.yaml",
    "custom-reward/job.yaml",
    "grade-school/job.yaml",
    "several-rewards/job.yaml",
    "quickstart-megatron.yaml",
    "reasoning-gym.yaml",
)

NEEDS = {"quickstart-megatron.yaml": "megatron", "reasoning-gym.yaml": "reasoning_gym"}
"""Packages beyond a plain install."""


@pytest.mark.long
@pytest.mark.timeout(3600)  # 200 steps beside other tests
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_succeeds_and_its_steps_show_nothing(example: str, tmp_path: Path) -> None:
    package = NEEDS.get(example)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    command = [sys.executable, "-m", "rljob_cli", "run", f"examples/{example}", "--out", str(tmp_path / "run")]
    ended = subprocess.run([*command, "--output", "json"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert (result["phase"], result["troubles"]) == ("Succeeded", [])
