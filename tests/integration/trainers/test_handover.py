"""What one world has saved another goes on with, also one of the other backend: the loss goes on as without a break.

And a step that is not finite on one rank is skipped by all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rljob_api.spec.roles import TrainerBackend
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import initial_state
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.trainers import build_trainer
from rljob_workers.trainers.base import Trainer
from rljob_workers.trainers.data_parallel import SingleRank
from tests.integration.trainers.handover_ranks import SAVED_AT, STEPS, rows_of, spec_of, train
from tests.integration.trainers.parts import save_part
from tests.integration.trainers.worlds import run_world

BREAK = 1e-5
"""Of the loss, which is about 0.3. Measured: up to 8e-8."""


def flat_trainer() -> Trainer:
    spec = spec_of(TrainerBackend.FLAT)
    return build_trainer(spec, build_tokenizer(spec.model), SingleRank())


def go_on(trainer: Trainer) -> list[float]:
    return [train(trainer, rows_of(step, 0, 1)).loss for step in range(SAVED_AT, STEPS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With version 0, and what Flat and four ranks of Fsdp have saved."""
    folder = tmp_path_factory.mktemp("handover")
    spec = spec_of(TrainerBackend.FLAT)
    write_blob(folder / "v0.safetensors", initial_state(spec.model, build_tokenizer(spec.model)))
    return folder


@pytest.fixture(scope="module")
def unbroken(folder: Path) -> list[float]:
    """The losses of one Flat rank that no one stops, which saves on its way."""
    trainer = flat_trainer()
    trainer.load(Folder(folder / "v0.safetensors"))
    losses = []
    for step in range(STEPS):
        if step == SAVED_AT:
            save_part(trainer, 0, folder / "flat")
        losses.append(train(trainer, rows_of(step, 0, 1)).loss)
    return losses


@pytest.fixture(scope="module")
def four(folder: Path) -> Path:
    """What four ranks did and saved."""
    return world_of(4, folder, "v0.safetensors", "float32")


def world_of(world: int, folder: Path, source: str, dtype: str, poisoned: str = "") -> Path:
    work = folder / f"{world}-after-{source.replace('/', '-')}-{dtype}"
    program = "tests.integration.trainers.handover_ranks"
    run_world(program, world=world, folder=work, arguments=[source, dtype, poisoned])
    return work


def reported(work: Path, rank: int) -> tuple[list[float], Sequence[str | None]]:
    losses, message = json.loads((work / f"rank{rank}.json").read_text())
    return losses, message


def test_four_ranks_train_what_one_rank_of_flat_trains(four: Path, unbroken: list[float]) -> None:
    assert reported(four, 0)[0] == reported(four, 3)[0] == pytest.approx(unbroken, abs=BREAK)


@pytest.mark.parametrize("world", [1, 2])
def test_fewer_ranks_go_on_with_what_four_have_saved(world: int, four: Path, unbroken: list[float]) -> None:
    losses, _ = reported(world_of(world, four.parent, f"{four.name}/saved", "float32"), 0)
    assert losses == pytest.approx(unbroken[SAVED_AT:], abs=BREAK)


def test_flat_goes_on_with_what_four_ranks_of_fsdp_have_saved(four: Path, unbroken: list[float]) -> None:
    trainer = flat_trainer()
    trainer.restore(four / "saved")
    assert go_on(trainer) == pytest.approx(unbroken[SAVED_AT:], abs=BREAK)


def test_fsdp_goes_on_with_what_flat_has_saved_and_skips_a_step_that_is_not_finite(
    folder: Path, unbroken: list[float]
) -> None:
    work = world_of(2, folder, "flat", "float32", poisoned="poisoned")
    assert reported(work, 0)[0] == pytest.approx(unbroken[SAVED_AT:], abs=BREAK)
    step = f"optimizer step {SAVED_AT + 1} has loss nan and a gradient of norm nan"
    assert [reported(work, rank)[1][0] for rank in (0, 1)] == [
        f"{step}: the loss of each row of this rank is finite. It is skipped, 1 in a row.",
        f"{step}: the loss of row 101 is not finite. It is skipped, 1 in a row.",
    ]


def test_one_rank_in_bfloat16_goes_on_with_the_exact_weights_of_two(folder: Path) -> None:
    two = world_of(2, folder, "v0.safetensors", "bfloat16")
    losses, _ = reported(world_of(1, folder, f"{two.name}/saved", "bfloat16"), 0)
    unbroken = reported(two, 0)[0][SAVED_AT:]
    assert losses[0] == pytest.approx(unbroken[0], abs=BREAK), "the weights are not those that were rounded"
    assert losses == pytest.approx(unbroken, abs=5e-3)  # rows are cut otherwise, which bfloat16 feels: 7e-4
