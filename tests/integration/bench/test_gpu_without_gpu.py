"""What `make test-gpu` runs, started where no GPU is: it says so, and all of it runs on the CPU at its smallest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integration.preloaded.client import fork_program

ROOT = Path(__file__).parents[3]
SECONDS = 600
"""Never measured: on a busy machine imports alone take minutes."""


def start(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_target_states_it() -> None:
    done = start("scripts/test-gpu", PYTHON=sys.executable)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "test-gpu: torch sees no CUDA device here. These tests are for a machine with a GPU: nothing was run.\n"
    )


def test_every_package_has_its_version() -> None:
    done = start("scripts/gpu-wheels", "--list")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 19
    assert all("==" in line for line in done.stdout.splitlines())


@pytest.mark.long
def test_the_comparisons_run() -> None:
    done = start(sys.executable, "-m", "pytest", "-q", "tests/gpu/test_parity.py", RLJOB_GPU_TESTS_ON_CPU="1")
    assert done.returncode == 0, done.stdout
    assert " passed in " in done.stdout
    assert " skipped" not in done.stdout


@pytest.mark.long
def test_megatron_with_and_without_transformer_engine_is_compared() -> None:
    program = "tests/gpu/test_transformer_engine.py"
    done = start(sys.executable, "-m", "pytest", "-q", program, RLJOB_GPU_TESTS_ON_CPU="1")
    assert done.returncode == 0, done.stdout
    assert "40 passed" in done.stdout


@pytest.mark.parametrize("backend", [pytest.param("Flat", marks=pytest.mark.long), "Fsdp"])
def test_the_figures_are_measured(backend: str, tmp_path: Path) -> None:
    options = ("--size", "smallest", "--length", "128", "--backend", backend, "--steps", "1")
    with (tmp_path / "said").open("wb") as output:  # forked after the imports, which take as long as the rest
        process = fork_program("tests.gpu.speed", options, output=output)
    text = (tmp_path / "said").read_text() if (code := process.wait(SECONDS)) == 0 else ""
    assert code == 0, (tmp_path / "said").read_text()
    message = json.loads(text.splitlines()[-1])
    assert (message["backend"], message["tokensPerStep"]) == (backend, 1024)
    assert min(message[name] for name in ("tokensPerSecond", "peakGiB", "publicationStallSeconds")) > 0
