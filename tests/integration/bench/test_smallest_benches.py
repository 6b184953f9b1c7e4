"""The benchmarks that drive whole processes run from their command to their last line, at their smallest size."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SECONDS = 600


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As `make` starts it: a module, from the repository's root."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)


def assert_ended_well(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.long
def test_samples_per_second_of_the_quickstart() -> None:
    sides = ("--side", "rljob run", "--side", "bare loop")
    message = assert_ended_well(
        bench("tests.bench.quickstart", "--shape", "quickstart", "--rounds", "1", "--steps", "3", *sides)
    )
    assert "  rljob run / bare loop " in message


def test_trl_trains_or_its_absence_is_named() -> None:
    """Its packages are in the benchmarks' lock only: without them the start goes as far as they are needed."""
    arguments = ("examples/quickstart.yaml", "--steps", "1", "--threads", "1")
    done = bench("tests.bench.trl_grpo", *arguments)
    if importlib.util.find_spec("trl") is None:
        sentence = "tests.bench.trl_grpo: the package datasets is not installed. Run scripts/install bench.\n"
        assert (done.returncode, done.stderr) == (1, sentence)
    else:
        steps = [json.loads(line) for line in assert_ended_well(done).splitlines() if line.startswith('{"step"')]
        assert [step["step"] for step in steps] == [1]


@pytest.mark.long
def test_the_queue() -> None:
    message = assert_ended_well(
        bench("tests.bench.queue", "--only", "w1", "--rounds", "1", "--sides", "ours unix", "--output", "json")
    )
    assert json.loads(message)["figures"]


@pytest.mark.long
def test_lengths_of_optimizer_steps() -> None:
    arguments = ("--rollouts", "2", "--steps", "2", "--slices", "1", "--groups", "4", "--samples", "2")
    message = assert_ended_well(bench("tests.bench.step_lengths", *arguments))
    assert len([line for line in message.splitlines() if "mean length" in line]) == 4


@pytest.mark.long
def test_training_of_transformers_models() -> None:
    message = assert_ended_well(bench("tests.bench.fsdp", "--size", "smallest", "--rounds", "1"))
    assert len([line for line in message.splitlines() if " tokens/s " in line]) == 8


@pytest.mark.long
def test_layouts_of_two_ranks() -> None:
    message = assert_ended_well(bench("tests.bench.layouts", "--size", "smallest", "--rounds", "1"))
    assert [line.split(",")[0].split()[0] for line in message.splitlines() if " tokens/s " in line] == [
        "Fsdp",
        "Megatron",
        "Megatron",
        "Megatron",
    ]
    assert len([line for line in message.splitlines() if line.startswith("imports of ")]) == 3


@pytest.mark.long
def test_the_coordinator() -> None:
    message = assert_ended_well(
        bench("tests.bench.coordinator", "--ranks", "2", "--seconds", "2", "--heartbeat-timeout", "3")
    )
    rows = dict(line.rsplit(maxsplit=1) for line in message.splitlines())
    assert (rows["ranks"], rows["refused"]) == ("2", "0")


@pytest.mark.long
def test_restarts() -> None:
    message = assert_ended_well(bench("tests.bench.restart", "--kills", "1"))
    assert [json.loads(line)["kills"] for line in message.splitlines()] == [1, 1, 1, 1]


@pytest.mark.long
def test_answers_with_a_long_tail() -> None:
    one_step = ("--steps", "1", "--seconds-per-step", "0.5", "--engine-steps", "1")
    message = assert_ended_well(
        bench("tests.bench.tail", "--variant", "Bound", "--staleness", "1", *one_step, "--output", "json")
    )
    halves = json.loads(message)
    assert [(row["variant"], row["steps"]) for half in ("simulated", "engines") for row in halves[half]] == [
        ("Bound", 1)
    ] * 2


@pytest.mark.long
def test_learning_with_slow_groups() -> None:
    message = assert_ended_well(bench("tests.bench.tail.learning", "--seeds", "1", "--steps", "20"))
    rows = [line.split() for line in message.splitlines()[1:]]
    assert [row[0] for row in rows] == ["Bound", "Swap", "Swap,"]
    assert all("never" in row for row in rows), "20 steps teach nothing"
