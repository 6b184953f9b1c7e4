"""What the dry run says of memory, against what two ranks hold: the state exactly, peaks within the stated factor."""

from __future__ import annotations

import json

import pytest

from rljob_api.machine.memory import WITHIN, Pass, ProcessMemory, forward_memory, trainer_memory
from rljob_api.model_files.size import critic_shape, model_shape
from rljob_api.spec.roles import TrainerBackend
from tests.integration.trainers.memory_jobs import JOBS, PROMPT_TOKENS, RESPONSE_TOKENS, ROWS, job_of
from tests.integration.trainers.worlds import run_world

WORLD = 2
SMALL_BYTES = 8 << 10
"""Beside weights, gradients and moments: statistics, rotary frequencies, what does not go evenly into shards."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    folder = tmp_path_factory.mktemp("world")
    run_world("tests.integration.trainers.memory_ranks", world=WORLD, folder=folder)
    found: dict[str, dict[str, int]] = json.loads((folder / "measured0.json").read_text())
    return found


def assert_holds(by_formula: ProcessMemory, state: int, peak: int) -> None:
    assert 0 <= state - by_formula.state < SMALL_BYTES
    assert 1 / WITHIN < by_formula.peak / peak < WITHIN


@pytest.mark.long
@pytest.mark.parametrize("name", JOBS)
def test_the_formula_holds(name: str, measured: dict[str, dict[str, int]]) -> None:
    spec, found = job_of(name), measured[name]
    shape, backend, training = model_shape(spec.model), spec.trainer_backend, spec.training
    keeps_less = backend is TrainerBackend.FSDP and training.activation_checkpointing is None
    work = Pass(ROWS * (PROMPT_TOKENS + RESPONSE_TOKENS), ROWS * RESPONSE_TOKENS, keeps_less)
    trainer = trainer_memory(shape, backend, spec.model.dtype, WORLD, work)
    assert_holds(trainer, found["state"], found["peak"])
    forward = forward_memory(shape, backend, spec.model.dtype, work)
    assert_holds(forward, found["weights"], found["forward_peak"])
    critic = trainer_memory(critic_shape(spec, shape), backend, spec.model.dtype, WORLD, work)
    assert_holds(critic, found["critic_state"], found["critic_peak"])
