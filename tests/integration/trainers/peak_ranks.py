"""One rank of a world that measures what memory a publication, a save and a restore take beyond its shard."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from rljob_workers.models.building import model_config
from rljob_workers.trainers.data_parallel import DataParallelGroup
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_sharded
from rljob_workers.trainers.fsdp.sharded_trainer import FsdpModel
from rljob_workers.trainers.fsdp.stored_tensors import local_rows
from rljob_workers.trainers.mesh import data_parallel
from rljob_workers.trainers.micro_batches import MicroBatchLimits
from rljob_workers.trainers.model_trainer import ModelTrainer, step_totals
from rljob_workers.trainers.optimizer_steps import TrainerConfig
from tests.integration.trainers.parts import save_part
from tests.integration.trainers.plain_training import OBJECTIVE, OPTIMIZER
from tests.integration.trainers.worlds import as_rank
from tests.own_memory import peak_of


def main(folder: Path, group: DataParallelGroup, mesh: DeviceMesh, dtype: str, fields: str) -> None:
    described = {"model_type": "qwen2", **json.loads(fields)}
    compute = getattr(torch, dtype)
    model = build_sharded(model_config(described), ModelOptions(torch.float32, compute), mesh)
    shard = 0
    for parameter in model.parameters():
        local, _ = local_rows(parameter)
        local.normal_(0.0, 0.02)
        shard += local.numel()
    config = TrainerConfig(compute, MicroBatchLimits(4), 1.0, OBJECTIVE, OPTIMIZER, 3, 10.0, "actor")
    trained = FsdpModel(
        model,
        OPTIMIZER,
        group,
        num_totals=step_totals(config, data_parallel(group)).size,
        dtype=compute,
        packing=True,
        device=torch.device("cpu"),
    )
    trainer = ModelTrainer(trained, config, data_parallel(group))
    for moments in (trained._optimizer.first_moments, trained._optimizer.second_moments):
        for moment in moments.values():
            moment.fill_(0.5)  # as after a step: until then they have no memory
    staged, publication = peak_of(trainer.stage_weights)
    part = sum(tensor.numel() * tensor.element_size() for tensor in staged.values())
    del staged
    _, save = peak_of(trainer.stage_state)
    save_part(trainer, group.rank, folder / "saved")
    group.add_up(torch.zeros(1), "all parts")
    _, restore = peak_of(lambda: trainer.restore(folder / "saved"))
    found = {"shard": 4 * shard, "part": part, "publication": publication, "save": save, "restore": restore}
    (folder / f"rank{group.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    as_rank(main)
