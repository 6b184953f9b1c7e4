"""Benchmarks and other programs of the repository begin at all, where nobody runs them whole with the tests."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
SECONDS = 600
"""Never measured: on a busy machine imports alone take minutes."""


@pytest.mark.parametrize(
    ("name", "option"),
    [
        pytest.param("restart", "--kills", id="restart"),
        pytest.param("cluster_restart", "--kills", id="cluster_restart"),
        pytest.param("operator_scale", "--jobs", id="operator_scale"),
        pytest.param("engine", "--rounds", id="engine"),
        pytest.param("trl_grpo", "--steps", id="trl_grpo"),
    ],
)
def test_a_bench_says_how_it_is_called(name: str, option: str) -> None:
    command = [sys.executable, "-m", f"tests.bench.{name}", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert option in done.stdout


def test_values_for_the_cluster_of_this_machine() -> None:
    done = subprocess.run(
        [ROOT / "scripts/cluster-values"], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert yaml.safe_load(done.stdout)["image"]["pullPolicy"] == "Never"
