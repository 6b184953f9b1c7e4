"""The benchmarks that drive jobs begin at all: nobody runs them with the tests."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["restart", "cluster_restart"])
def test_a_bench_says_how_it_is_called(name: str) -> None:
    command = [sys.executable, "-m", f"tests.bench.{name}", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    assert "--kills" in done.stdout
