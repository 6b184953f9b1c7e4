"""One rank of a gang that trains models of Megatron in some layout, from version 0 or from what another one has saved.

Writes, for each family, its part of the weights at the end, what each optimizer step gave, and, on the first rank, the
log-probs and entropies of rows that were not trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from rljob_api.spec.parallelism import ParallelismSpec
from rljob_workers.algorithms.objective import Output
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import model_config
from rljob_workers.models.weight_source import Folder
from rljob_workers.trainers.base import Trainer, TrainRows
from rljob_workers.trainers.data_parallel import DataParallelGroup, RankVote, agree
from rljob_workers.trainers.megatron.decoder import Decoder, DecoderOptions
from rljob_workers.trainers.megatron.groups import mesh_of
from rljob_workers.trainers.megatron.megatron_model import MegatronModel
from rljob_workers.trainers.mesh import Mesh
from rljob_workers.trainers.micro_batches import MicroBatchLimits
from rljob_workers.trainers.model_trainer import ModelTrainer, step_totals
from rljob_workers.trainers.optimizer_steps import TrainerConfig
from rljob_workers.trainers.row_shares import score_shared
from tests.integration.trainers.parts import save_part
from tests.integration.trainers.plain_training import MOST_SKIPPED, OBJECTIVE, OPTIMIZER, TEMPERATURE, rows_of_step
from tests.integration.trainers.training_ranks import select
from tests.integration.trainers.worlds import as_rank
from tests.unit.trainers.megatron.decoders import DECODERS

PROBE = 99
"""The step whose rows are scored at the end."""


def main(
    folder: Path, group: DataParallelGroup, _: DeviceMesh, layout: str, name: str, first: str, last: str, source: str
) -> None:
    """Optimizer steps [first, last); `source` is the folder of a gang that saved after `first`, or nothing."""
    parallelism = ParallelismSpec.model_validate_json(layout)
    mesh = mesh_of(parallelism, group)
    trainer = make_trainer(name, parallelism, mesh)
    if source:
        trainer.restore(folder.parent / source / f"{name}-saved-{first}")
    else:
        trainer.load(Folder(folder.parent / name))
    results = [train_step(trainer, mesh, rows_of_step(step)) for step in range(int(first), int(last))]
    save_part(trainer, group.rank, folder / f"{name}-saved-{last}")
    probe = rows_of_step(PROBE)
    scored = {
        output.value: score_shared(trainer, probe.tokens, probe.response_lengths, output).values
        for output in (Output.LOG_PROBS, Output.ENTROPY)
    }
    write_blob(folder / f"{name}-{group.rank}-scored.safetensors", scored)
    write_blob(folder / f"{name}-{group.rank}.safetensors", trainer.stage_weights())
    (folder / f"{name}-{group.rank}.json").write_text(json.dumps(results))


def make_trainer(name: str, parallelism: ParallelismSpec, mesh: Mesh) -> ModelTrainer:
    options = DecoderOptions(parallelism, torch.float32, recomputes=parallelism.pipeline > 1)
    decoder = Decoder(model_config(DECODERS[name]), options, mesh.gang)
    limits = MicroBatchLimits(2, 40)
    config = TrainerConfig(torch.float32, limits, TEMPERATURE, OBJECTIVE, OPTIMIZER, MOST_SKIPPED, 10.0, "actor")
    model = MegatronModel(decoder, OPTIMIZER, mesh, num_totals=step_totals(config, mesh).size)
    return ModelTrainer(model, config, mesh)


def train_step(trainer: Trainer, mesh: Mesh, rows: TrainRows) -> list[float]:
    """In two slices, as rows come, of which the last of several data-parallel ranks has none of the second."""
    for part in slices_of(rows, mesh):
        agreed = agree(mesh.gang, RankVote(True, False, trainer.num_micro_batches(part)), "a slice")
        trainer.accumulate(part, num_micro_batches=agreed.num_micro_batches)
    result = trainer.optimizer_step()
    assert result.skipped is None, result.skipped
    return [result.loss, result.grad_norm, result.metrics["policy/kl_reference"], result.metrics["policy/entropy"]]


def slices_of(rows: TrainRows, mesh: Mesh) -> Iterator[TrainRows]:
    half = len(rows.tokens) // 2
    yield select(rows, list(range(mesh.dp_rank, half, mesh.dp_size)))
    ranks = max(1, mesh.dp_size - 1)
    yield select(rows, list(range(half + mesh.dp_rank, len(rows.tokens), ranks)) if mesh.dp_rank < ranks else [])


if __name__ == "__main__":
    as_rank(main)
