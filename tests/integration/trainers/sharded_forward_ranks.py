"""One rank of a gang that computes log-probs under one model, or the process that holds all of it.

Writes its log-probs, and the most memory that it had of its own from before the model was built to the last pass.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from rljob_workers.algorithms.objective import Output
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import model_config
from rljob_workers.models.weights import Folder
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.allocator import keep_freed_memory, return_freed_memory
from rljob_workers.trainers.base import ForwardModel
from rljob_workers.trainers.data_parallel import DataParallelGroup
from rljob_workers.trainers.fsdp.sharded_forward import ShardedForward
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_sharded, build_whole
from rljob_workers.trainers.fsdp.sharded_trainer import FsdpScoring
from rljob_workers.trainers.micro_batches import MicroBatchLimits
from rljob_workers.trainers.model_trainer import ModelForward
from tests.integration.trainers.worlds import as_rank
from tests.own_memory import peak_of
from tests.unit.trainers.fsdp.tiny import make_tokens

TEMPERATURE = 1.3
ROWS = (7, 1, 2, 11)
"""Of one call each: fewer than ranks, and numbers that they do not divide."""
LIMITS = MicroBatchLimits(2, 40)


def main(folder: Path, group: DataParallelGroup, mesh: DeviceMesh, model: str) -> None:
    from transformers.models.qwen2 import modeling_qwen2  # noqa: F401 -- imports are no part of a model
    from transformers.models.qwen3 import modeling_qwen3  # noqa: F401

    described = json.loads((Path(model) / "config.json").read_text())

    def work() -> list[Jagged]:
        forward = _built(described, group, mesh)
        found = []
        for call, rows in enumerate(ROWS):
            if call % 2 == 0:  # weights come again, also after a pass that left some gathered
                forward.load(Folder(Path(model)))
            tokens, responses = make_tokens(seed=call, rows=rows)
            found.append(forward.score(tokens, responses, Output.LOG_PROBS, TEMPERATURE))
        return found

    found, peak = peak_of(work)
    write_blob(folder / f"rank{group.rank}.safetensors", {str(call): one.values for call, one in enumerate(found)})
    (folder / f"rank{group.rank}.json").write_text(json.dumps(peak))


def _built(described: dict[str, object], group: DataParallelGroup, mesh: DeviceMesh) -> ForwardModel:
    options = ModelOptions(torch.float32, torch.float32)
    if group.world == 1:
        keep_freed_memory()
    else:
        return_freed_memory()
    if group.world == 1:
        return ModelForward(FsdpScoring(build_whole(model_config(described), options), packing=True), LIMITS)
    model = build_sharded(model_config(described), options, mesh).requires_grad_(False)
    return ShardedForward(model, group, LIMITS, packing=True)


if __name__ == "__main__":
    as_rank(main)
