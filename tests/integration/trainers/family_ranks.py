"""One rank of a world that scores rows with the sharded model of every family, and writes gradients as they are stored.

Also what it reads of the folder of a family's weights, so that loading is seen, too.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import model_config
from rljob_workers.trainers.data_parallel import DataParallelGroup
from rljob_workers.trainers.fsdp.inputs import ModelInputs, joined_inputs, padded_inputs
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_sharded, build_whole, score
from rljob_workers.trainers.fsdp.stored_tensors import layout_of, load_folder, local_rows
from tests.integration.trainers.worlds import as_rank
from tests.unit.trainers.fsdp.tiny import MODELS, OTHERS, described, make_tokens

ROWS = 9
TEMPERATURE = 1.3
STORAGE = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.float32}


def main(folder: Path, group: DataParallelGroup, mesh: DeviceMesh, precision: str, layout: str) -> None:
    packing = layout == "packed"
    options = ModelOptions(
        STORAGE[precision], getattr(torch, precision), packing, torch.float32, activation_checkpointing=True
    )
    tokens, responses = make_tokens(rows=ROWS)
    idle = int(group.world > 2)  # ranks that have no rows: they take part all the same
    mine = list(range(group.rank - idle, ROWS, group.world - idle)) if group.rank >= idle else []
    for name in MODELS if packing else OTHERS:
        model = build_sharded(model_config(described(name)), options, mesh)
        load_folder(model, folder.parent / name)
        inputs = (joined_inputs if packing else padded_inputs)(
            tokens.select(mine), responses[mine], torch.device("cpu")
        )
        log_probs, entropy = score(model, inputs, TEMPERATURE)
        if precision == "bfloat16":
            _assert_a_whole_model_scores_alike(name, folder.parent / name, inputs, log_probs)
        weights = torch.cat([torch.linspace(-1, 1, int(responses[row])) + row / ROWS for row in mine] or [log_probs])
        # FSDP takes the mean over the ranks
        torch.autograd.backward(log_probs @ weights.to(log_probs.dtype) * group.world)
        gradients = {}
        for parameter_name, parameter in model.named_parameters():
            assert parameter.grad is not None, parameter_name
            for part in layout_of(model).parts(parameter_name, *local_rows(parameter.grad)):
                gradients[f"{part.name}@{part.offset[0] if part.offset else 0}"] = part.values
        results = {"log_probs": log_probs.detach(), "entropy": entropy.detach(), "rows": torch.tensor(mine)}
        write_blob(folder / f"{name}-{group.rank}.safetensors", {**results, **gradients})


def _assert_a_whole_model_scores_alike(name: str, folder: Path, inputs: ModelInputs, log_probs: torch.Tensor) -> None:
    """As actor_fwd holds it: weights that were rounded before and not for the pass; the same numbers, to the bit."""
    whole = build_whole(
        model_config(described(name)), ModelOptions(torch.bfloat16, torch.bfloat16, head_dtype=torch.float32)
    )
    load_folder(whole, folder)
    with torch.no_grad():
        assert torch.equal(score(whole, inputs, TEMPERATURE)[0], log_probs), name


if __name__ == "__main__":
    as_rank(main)
