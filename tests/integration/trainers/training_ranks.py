"""One rank of a world that trains every family sharded, from version 0 or from what another world has saved.

Writes, for each family, its part of the weights at the end and what each optimizer step gave.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import model_config
from rljob_workers.models.weights import Folder
from rljob_workers.trainers.base import Trainer, TrainRows
from rljob_workers.trainers.data_parallel import DataParallelGroup, RankVote, agree
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_sharded
from rljob_workers.trainers.fsdp.sharded_trainer import FsdpModel
from rljob_workers.trainers.mesh import data_parallel
from rljob_workers.trainers.micro_batches import MicroBatchLimits
from rljob_workers.trainers.model_trainer import ModelTrainer, step_totals
from rljob_workers.trainers.optimizer_steps import TrainerConfig
from tests.integration.trainers.parts import save_part
from tests.integration.trainers.plain_training import MOST_SKIPPED, OBJECTIVE, OPTIMIZER, TEMPERATURE, rows_of_step
from tests.integration.trainers.worlds import as_rank
from tests.train_rows import replaced
from tests.unit.trainers.fsdp.tiny import described
from tests.unit.trainers.rows import select_rows


def main(
    folder: Path,
    group: DataParallelGroup,
    mesh: DeviceMesh,
    precision: str,
    names: str,
    first: str,
    last: str,
    source: str,
) -> None:
    """Optimizer steps [first, last); `source` is the folder of a world that saved before `first`, or nothing."""
    dtype = getattr(torch, precision)
    for name in names.split(","):
        trainer = make_trainer(name, dtype, group, mesh)
        if source:
            trainer.restore(folder.parent / source / f"{name}-saved-{first}")
        else:
            trainer.load(Folder(folder.parent / name))
        results = []
        for step in range(int(first), int(last)):
            if step == int(first) + 3:
                save_part(trainer, group.rank, folder / f"{name}-saved-{step}")
            results.append(train_step(trainer, group, rows_of_step(step)))
        write_blob(folder / f"{name}-{group.rank}.safetensors", trainer.stage_weights())
        (folder / f"{name}-{group.rank}.json").write_text(json.dumps(results))


def make_trainer(name: str, dtype: torch.dtype, group: DataParallelGroup, mesh: DeviceMesh) -> ModelTrainer:
    options = ModelOptions(dtype, dtype, activation_checkpointing=True)
    model = build_sharded(model_config(described(name)), options, mesh)
    if dtype is torch.float64 and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    limits = MicroBatchLimits(2, 40)
    config = TrainerConfig(dtype, limits, TEMPERATURE, OBJECTIVE, OPTIMIZER, MOST_SKIPPED, 10.0, "actor")
    trained = FsdpModel(
        model,
        OPTIMIZER,
        group,
        num_totals=step_totals(config, data_parallel(group)).size,
        dtype=dtype,
        packing=True,
        device=torch.device("cpu"),
    )
    return ModelTrainer(trained, config, data_parallel(group))


def train_step(trainer: Trainer, group: DataParallelGroup, rows: TrainRows) -> list[float]:
    """In two slices, as rows come, of which the last rank of four has none of the second."""
    for part in slices_of(rows, group):
        agreed = agree(group, RankVote(True, False, trainer.num_micro_batches(part)), "a slice")
        trainer.accumulate(part, num_micro_batches=agreed.num_micro_batches)
    result = trainer.optimizer_step()
    assert result.skipped is None, result.skipped
    return [result.loss, result.grad_norm, result.metrics["policy/kl_reference"], result.metrics["policy/entropy"]]


def slices_of(rows: TrainRows, group: DataParallelGroup) -> Iterator[TrainRows]:
    half = len(rows.tokens) // 2
    yield select(rows, list(range(group.rank, half, group.world)))
    idle = int(group.world > 2)
    mine = range(half + group.rank, len(rows.tokens), group.world - idle) if group.rank < group.world - idle else ()
    yield select(rows, list(mine))


def select(rows: TrainRows, places: list[int]) -> TrainRows:
    return replaced(select_rows(rows, places), log_probs=None)


if __name__ == "__main__":
    as_rank(main)
