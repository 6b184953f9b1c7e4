"""One rank of a world that trains a fixed file of rows with the backend Fsdp: from version 0, or from a checkpoint.

Saves before step SAVED_AT and writes the loss of each step. With "poisoned" there is a step more before the first, in
which a row of the last rank has an advantage that is not a number.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import TrainerBackend
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_trainer
from rljob_workers.trainers.base import OptimizerStepResult, Trainer, TrainRows
from rljob_workers.trainers.data_parallel import DataParallelGroup
from tests.integration.trainers.parts import save_part
from tests.integration.trainers.worlds import as_rank
from tests.train_rows import replaced
from tests.unit.trainers.rows import make_rows, make_spec, select_rows

STEPS, SAVED_AT, ROWS = 6, 3, 16
MICRO_BATCH = 4


def main(folder: Path, group: DataParallelGroup, mesh: DeviceMesh, source: str, dtype: str, poisoned: str) -> None:
    del mesh  # the factory makes its own
    spec = spec_of(TrainerBackend.FSDP, dtype)
    trainer = build_trainer(spec, build_tokenizer(spec.model), group)
    if source == "v0.safetensors":
        trainer.load(Folder(folder.parent / source))
    else:
        trainer.restore(folder.parent / source)
    message: list[str | None] = []
    if poisoned:
        message.append(train(trainer, poison(rows_of(0, group.rank, group.world), group)).skipped)
    losses = []
    for step in range(0 if source == "v0.safetensors" else SAVED_AT, STEPS):
        if step == SAVED_AT:
            save_part(trainer, group.rank, folder / "saved")
        losses.append(train(trainer, rows_of(step, group.rank, group.world)).loss)
    (folder / f"rank{group.rank}.json").write_text(json.dumps([losses, message]))


def spec_of(backend: TrainerBackend, dtype: str = "float32") -> RLJobSpec:
    spec = make_spec(micro_batch_size=MICRO_BATCH, dtype=dtype)
    actor = spec.roles.actor.model_copy(update={"backend": backend})
    return spec.model_copy(update={"roles": spec.roles.model_copy(update={"actor": actor})})


def rows_of(step: int, rank: int, world: int) -> TrainRows:
    return select_rows(make_rows(step), list(range(rank, ROWS, world)))


def train(trainer: Trainer, rows: TrainRows) -> OptimizerStepResult:
    trainer.accumulate(rows, num_micro_batches=ROWS // MICRO_BATCH)
    return trainer.optimizer_step()


def poison(rows: TrainRows, group: DataParallelGroup) -> TrainRows:
    numbers = 100 * group.rank + torch.arange(len(rows.tokens))
    values = rows.columns[Column.ADVANTAGES].values.clone()
    if group.rank == group.world - 1:
        values[rows.columns[Column.ADVANTAGES].offsets[1]] = torch.nan
    masks = Jagged(torch.ones_like(rows.columns[Column.LOSS_MASKS].values), rows.columns[Column.LOSS_MASKS].offsets)
    advantages = Jagged(values, rows.columns[Column.ADVANTAGES].offsets)
    return replaced(rows, advantages=advantages, loss_masks=masks, row_numbers=numbers)


if __name__ == "__main__":
    as_rank(main)
