"""One rank alone trains a tiny model of each family by Megatron, on the device it sees, and writes what came of it.

    python -m tests.gpu.megatron_alone FOLDER NAME [--without-engine]

FOLDER has the models, by family. A program of its own, since what makes Megatron run on a CPU holds for a process, as
does whether Transformer Engine is there. `--without-engine` hides it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rljob_api.spec.parallelism import ParallelismSpec
from rljob_workers.algorithms.objective import Output
from rljob_workers.devices import own_device
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import model_config
from rljob_workers.models.weights import Folder
from rljob_workers.trainers.data_parallel import SingleRank
from rljob_workers.trainers.megatron.decoder import Decoder, DecoderOptions
from rljob_workers.trainers.megatron.groups import mesh_of
from rljob_workers.trainers.megatron.megatron_model import MegatronModel
from rljob_workers.trainers.micro_batches import MicroBatchLimits
from rljob_workers.trainers.model_trainer import ModelTrainer, step_totals
from rljob_workers.trainers.optimizer_steps import TrainerConfig
from tests.integration.trainers.parts import save_part
from tests.integration.trainers.plain_training import OBJECTIVES, OPTIMIZER, TEMPERATURE
from tests.megatron_groups import end_megatron_model
from tests.unit.trainers.megatron.decoders import DECODERS
from tests.unit.trainers.rows import make_rows

_SIZES = {
    "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64, "initializer_range": 0.05,
}  # fmt: skip
"""Heads that fused attention takes."""
MODELS: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {**DECODERS["qwen2"], **_SIZES},
    "qwen3": {**DECODERS["qwen3"], **_SIZES},
    "llama": {**DECODERS["llama"], **_SIZES},
    "qwen3_moe": {**DECODERS["qwen3_moe"], **_SIZES, "moe_intermediate_size": 64},
}
DTYPES = ("bfloat16", "float32")
LIMITS = MicroBatchLimits(8, 400)
NAME = "{family} in {dtype}"
"""Of a folder."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--without-engine", action="store_true")
    arguments = parser.parse_args()
    if arguments.without_engine:
        sys.modules["transformer_engine"] = None  # type: ignore[assignment] # an import says that it is not there
    from rljob_workers.trainers.megatron.megatron_backend import BACKEND

    for module in BACKEND.preload:
        __import__(module)
    was_started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # it would not outlive the fork of a rank
    for dtype in DTYPES:
        for family in MODELS:
            folder = arguments.folder / arguments.name / NAME.format(family=family, dtype=dtype)
            folder.mkdir(parents=True)
            end_megatron_model()
            report = train(arguments.folder / family, family, getattr(torch, dtype), folder)
            (folder / "report.json").write_text(json.dumps({**report, "imports started CUDA": was_started}))


def train(model: Path, family: str, dtype: torch.dtype, folder: Path) -> dict[str, Any]:
    """Writes into `folder` the weights as they were loaded, what is scored before and after a step, and the state."""
    gang, parallelism = SingleRank(), ParallelismSpec()
    mesh = mesh_of(parallelism, gang)
    config = TrainerConfig(
        dtype=dtype,
        limits=LIMITS,
        temperature=TEMPERATURE,
        objective=OBJECTIVES["policy and entropy"],
        optimizer=OPTIMIZER,
        max_skipped_steps=0,
        norm_multiple=10.0,
        role="actor",
    )
    decoder = Decoder(model_config(MODELS[family]), DecoderOptions(parallelism, dtype), gang)
    trainer = ModelTrainer(
        MegatronModel(decoder, OPTIMIZER, mesh, num_totals=step_totals(config, mesh).size), config, mesh
    )
    trainer.load(Folder(model))
    write_blob(folder / "loaded.safetensors", dict(trainer.stage_weights()))
    rows = make_rows(0, longest=90)
    scored = {}
    for output in (Output.LOG_PROBS, Output.ENTROPY):
        scored[output.value] = trainer.score(rows.tokens, rows.response_lengths, output, TEMPERATURE).values
    trainer.accumulate(rows)
    result = trainer.optimizer_step()
    assert result.skipped is None, result.skipped
    after = trainer.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, TEMPERATURE)
    write_blob(folder / "scored.safetensors", {**scored, "log-probs after the step": after.values})
    save_part(trainer, 0, folder / "saved")
    trainer.restore(folder / "saved")
    save_part(trainer, 0, folder / "saved again")
    return {
        "device": str(own_device()),
        "layers": decoder.layers.name,
        "names": [name for chunk in decoder.chunks for name, _ in chunk.named_parameters()],
        "loss": result.loss,
        "norm": result.grad_norm,
    }


if __name__ == "__main__":
    main()
