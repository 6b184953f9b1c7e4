"""Training by Megatron is training: the same steps as a plain transformers loop, in every layout.

Gradients are not compared one by one: Adam moves every element by its gradient over that gradient's size, so that a
tensor whose gradient is wrong by a factor or misses a term goes another way within three steps; a factor that all
gradients have alike shows in their norm, and clipping is active.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import torch

from rljob_workers.models.blob import read_blob
from tests.integration.trainers.megatron_ranks import Run, arguments_of
from tests.integration.trainers.plain_training import OPTIMIZER, Trained, train_plainly
from tests.integration.trainers.worlds import run_world
from tests.near import assert_moved_alike
from tests.unit.trainers.fsdp.tiny import save_described
from tests.unit.trainers.megatron.decoders import DECODERS

PROGRAM = "tests.integration.trainers.megatron_ranks"
STEPS = 3
WEIGHTS_BOUND, RESULTS_BOUND, SCORES_BOUND = 5e-3, 1e-4, 1e-3
"""Of the way that a tensor moved; of loss, norm and KL; of log-probs and entropies of rows that were not trained on."""


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
    "PP2 EP2": Layout(4, {"pipeline": 2, "expert": 2}),
}
ALL = {**LAYOUTS, **OF_EXPERTS}

FIRST = [
    ("TP2", "qwen3-untied"),
    ("PP2 VPP2", "qwen3"),
    ("DP2", "llama"),
    ("EP2", "qwen3_moe"),
    ("TP2 PP2", "llama"),
    ("CP2 TP2 SP", "qwen2"),
    ("TP2 EP2 ETP2", "qwen3_moe"),
]
"""Each axis, and each family, once; ranks of one world train them one after the other."""
OTHERS = [
    *((layout, model) for model in ("qwen2", "qwen3", "qwen3-untied", "llama") for layout in LAYOUTS),
    *((layout, "qwen3_moe") for layout in (*OF_EXPERTS, "1", "TP2 SP", "PP2")),
]
OTHERS = [case for case in OTHERS if case not in FIRST]


class Bench:
    """Worlds and plain loops, each run when a test first asks for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plain = cache(self._plain)

    def model(self, name: str) -> Path:
        path = self.folder / name
        return path if path.exists() else save_described(DECODERS[name], path)

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

    def weights(self, run: Run, world: int) -> dict[str, torch.Tensor]:
        """Of all parts together."""
        parts = [read_blob(self.folder / run.folder / f"weights-{rank}.safetensors") for rank in range(world)]
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


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("megatron"))


def run_of(layout: str, model: str, objective: str = "policy") -> Run:
    return Run(
        folder=f"{layout}, {model}, {objective}",
        model=model,
        first=0,
        last=STEPS,
        parallelism=ALL[layout].parallelism,
        objective=objective,
    )


def assert_trains_like_a_plain_loop(bench: Bench, run: Run, world: int) -> None:
    plain = bench.plain(run.model, run.objective, STEPS)
    found = bench.weights(run, world)
    assert found.keys() == plain.weights.keys()
    for key, weight in plain.weights.items():
        assert_moved_alike(found[key], weight, plain.before[key], WEIGHTS_BOUND, f"{run.folder}: {key}")
    for step, (loss, norm, divergence) in zip(bench.results(run, world), plain.results, strict=True):
        assert norm > 2 * OPTIMIZER.max_grad_norm, "clipping is active"
        seen = step["loss"], step["norm"], step.get("policy/kl_reference", 0.0)
        assert seen == pytest.approx((loss, norm, divergence), rel=RESULTS_BOUND, abs=RESULTS_BOUND)
    scores = bench.scores(run, world)
    for name, expected in (("log_probs", plain.log_probs), ("entropy", plain.entropies)):
        assert float((scores[name] - expected).abs().max()) < SCORES_BOUND, name


@pytest.mark.parametrize(("layout", "model"), FIRST)
def test_a_layout_trains_what_a_plain_loop_trains(layout: str, model: str, bench: Bench) -> None:
    world = ALL[layout].world
    bench.run(world, *(run_of(*case) for case in FIRST if ALL[case[0]].world == world))
    assert_trains_like_a_plain_loop(bench, run_of(layout, model), world)


@pytest.mark.long
@pytest.mark.parametrize(("layout", "model"), OTHERS)
def test_every_layout_trains_what_a_plain_loop_trains(layout: str, model: str, bench: Bench) -> None:
    world = ALL[layout].world
    bench.run(world, *(run_of(*case) for case in OTHERS if (ALL[case[0]].world, case[1]) == (world, model)))
    assert_trains_like_a_plain_loop(bench, run_of(layout, model), world)
