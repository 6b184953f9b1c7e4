"""Layouts of Megatron, and a bench that trains models in them once for all tests of a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from rljob_workers.models.blob import WEIGHTS_FILE, read_blob, read_weights, write_blob
from rljob_workers.models.slices import SavedState
from tests.integration.trainers.megatron_ranks import Run, arguments_of
from tests.integration.trainers.plain_training import Trained, train_plainly
from tests.integration.trainers.worlds import run_world
from tests.unit.trainers.fsdp.tiny import save_described
from tests.unit.trainers.megatron.decoders import DECODERS

PROGRAM = "tests.integration.trainers.megatron_ranks"


@dataclass(frozen=True)
class Layout:
    """How so many ranks share a model."""

    world: int
    parallelism: Mapping[str, int | bool] = field(default_factory=dict)


LAYOUTS = {
    "1": Layout(1),
    "DP2": Layout(2),
    "TP2": Layout(2, {"tensor": 2, "sequence": False}),
    "TP2 SP": Layout(2, {"tensor": 2}),
    "PP2": Layout(2, {"pipeline": 2}),
    "PP2 VPP2": Layout(2, {"pipeline": 2, "virtual_pipeline": 2}),
    "CP2": Layout(2, {"context": 2}),
    "TP2 PP2": Layout(4, {"tensor": 2, "pipeline": 2}),
    "CP2 TP2 SP": Layout(4, {"context": 2, "tensor": 2}),
    "PP2 DP2": Layout(4, {"pipeline": 2}),
    "TP2 DP2": Layout(4, {"tensor": 2}),
}
OF_EXPERTS = {
    "EP2": Layout(2, {"expert": 2}),
    "TP2 EP2 SP": Layout(2, {"tensor": 2, "expert": 2}),
    "TP2 EP2 ETP2": Layout(4, {"tensor": 2, "expert": 2, "expert_tensor": 2}),
    "ETP2": Layout(2, {"expert_tensor": 2}),
    "TP2 ETP2": Layout(2, {"tensor": 2, "expert_tensor": 2}),
    "CP2 EP2": Layout(2, {"context": 2, "expert": 2}),
    "PP2 EP2": Layout(4, {"pipeline": 2, "expert": 2}),
}
ALL = {**LAYOUTS, **OF_EXPERTS}


WRONG = "model.layers.3.self_attn.k_proj.weight"
"""Of the last stage: the others have none of it."""


def wrong_tensors(stored: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Other values than are stored, of which one tensor does not fit; by what is wrong."""
    doubled = {name: 2 * tensor for name, tensor in stored.items()}
    return {
        "absent": {name: tensor for name, tensor in doubled.items() if name != WRONG},
        "shape": {**doubled, WRONG: doubled[WRONG].t().contiguous()},
        "unknown": {**doubled, "model.bias": torch.zeros(2)},
    }


class Bench:
    """Worlds and plain loops, each run when a test first asks for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plain = cache(self._plain)

    def model(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            save_described(DECODERS[name], path)
            stored = read_weights(path)
            for what, tensors in wrong_tensors(stored).items():
                wrong = self.folder / f"{name}-wrong-{what}"
                wrong.mkdir()
                write_blob(wrong / WEIGHTS_FILE, tensors)
        return path

    def _plain(self, model: str, objective: str, steps: int) -> Trained:
        return train_plainly(self.model(model), steps, objective=objective)

    def run(self, world: int, *runs: Run) -> None:
        """Those whose folders are not there yet, one after the other in the same ranks."""
        todo = [run for run in runs if not (self.folder / run.folder).exists()]
        for run in todo:
            self.model(run.model)
        if todo:
            work = self.folder / f"world-of-{todo[0].folder}"
            run_world(PROGRAM, world=world, folder=work, arguments=arguments_of(*todo))

    def weights(self, run: Run, world: int, when: str = "weights") -> dict[str, torch.Tensor]:
        """Of all parts together; `loaded`: those of before the first step."""
        parts = [read_blob(self.folder / run.folder / f"{when}-{rank}.safetensors") for rank in range(world)]
        found = {key: tensor for part in parts for key, tensor in part.items()}
        assert sum(map(len, parts)) == len(found), "a tensor is in one part"
        return found

    def results(self, run: Run, world: int) -> list[dict[str, float]]:
        seen = [json.loads((self.folder / run.folder / f"results-{rank}.json").read_text()) for rank in range(world)]
        assert all(one == seen[0] for one in seen), "all ranks say the same of a step"
        found: list[dict[str, float]] = seen[0]
        return found

    def scores(self, run: Run, world: int) -> dict[str, torch.Tensor]:
        seen = [read_blob(self.folder / run.folder / f"scored-{rank}.safetensors") for rank in range(world)]
        assert all(torch.equal(one[key], seen[0][key]) for one in seen for key in seen[0]), "all ranks score alike"
        return seen[0]

    def state(self, run: Run) -> dict[str, torch.Tensor]:
        """What its ranks have saved of weights and optimizer, whole tensors by kind and name."""
        folder = self.folder / run.folder / "saved"
        saved = SavedState(folder, "actor")
        found: dict[str, torch.Tensor] = {}
        weights = read_weights(folder)
        for kind in sorted(saved.kinds):
            saved.check(kind, {name: tensor.shape for name, tensor in weights.items()})
            whole = {name: torch.full(tensor.shape, torch.nan) for name, tensor in weights.items()}
            saved.fill(kind, whole)
            found |= {f"{kind} of {name}": tensor for name, tensor in whole.items()}
        return found | weights
