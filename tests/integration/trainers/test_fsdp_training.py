"""Sharded training is training: the same steps as a plain transformers loop, in any world, also one that took over.

The checkpoint that is gone on with was written by four ranks, of which one had no rows in half of the slices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from rljob_workers.models.blob import read_blob
from tests.integration.trainers.plain_training import STEPS, Trained, train_plainly
from tests.integration.trainers.worlds import run_world
from tests.near import assert_moved_alike
from tests.unit.trainers.fsdp.tiny import MODELS, save_model

BOUNDS = {"float64": (1e-11, 1e-12), "partly": (1e-3, 1e-5), "float32": (5e-3, 1e-4)}
"""Of the way that a tensor moved, and of loss, norm and KL. Measured after five steps: float64 up to 5e-14 and 3e-15 in
every world, Gemma up to 6e-6 and 1e-7, float32 up to 5e-5 and 9e-6."""
PARTLY_FLOAT32 = ("gemma2", "gemma3_text")
"""In float64, too: transformers' softmax and norms of theirs, at another scale in each micro-batch."""
ALL, SOME = ",".join(MODELS), "qwen2,qwen3_moe"
"""SOME: with a tied head, and with experts that are stored one by one."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Trained]]:
    folder = tmp_path_factory.mktemp("training")
    attention = {"gemma2": "eager"}  # the only one that caps scores
    return folder, {
        name: train_plainly(save_model(name, folder / name), attention=attention.get(name, "sdpa")) for name in MODELS
    }


FOUR_RANKS = (4, "float64", 0, ALL)
WORLDS = [
    pytest.param(2, "float64", 0, ALL, id="two ranks"),
    pytest.param(1, "float64", 0, ALL, id="one rank", marks=pytest.mark.long),
    pytest.param(*FOUR_RANKS, id="four ranks, which save after step 3", marks=pytest.mark.long),
    pytest.param(2, "float64", 3, SOME, id="two ranks go on with what four have saved", marks=pytest.mark.long),
    pytest.param(1, "float64", 3, SOME, id="one rank goes on with what four have saved", marks=pytest.mark.long),
    pytest.param(2, "float32", 0, SOME, id="two ranks in float32", marks=pytest.mark.long),
]


def train(folder: Path, world: int, precision: str, first: int, names: str) -> Path:
    """Where so many ranks have trained from step `first` on, once for all tests; after the four where that is not 0."""
    work = folder / f"{precision}-{world}-{first}"
    if not work.exists():
        source = train(folder, *FOUR_RANKS).name if first else ""
        arguments = [precision, names, str(first), str(STEPS), source]
        run_world("tests.integration.trainers.training_ranks", world=world, folder=work, arguments=arguments)
    return work


@pytest.mark.parametrize(("world", "precision", "first", "names"), WORLDS)
def test_any_world_trains_what_a_plain_loop_trains(
    world: int, precision: str, first: int, names: str, plain: tuple[Path, Mapping[str, Trained]]
) -> None:
    folder, families = plain
    work = train(folder, world, precision, first, names)
    for name in names.split(","):
        trained = families[name]
        is_partly = precision == "float64" and name in PARTLY_FLOAT32
        weights_bound, results_bound = BOUNDS["partly" if is_partly else precision]
        parts = [read_blob(work / f"{name}-{rank}.safetensors") for rank in range(world)]
        found = {key: tensor for part in parts for key, tensor in part.items()}
        assert sum(len(part) for part in parts) == len(found), "a tensor is in one part"
        assert found.keys() == trained.weights.keys()
        for key, weight in trained.weights.items():
            assert_moved_alike(found[key], weight, trained.before[key], weights_bound, f"{name}: {key}")
        seen = [json.loads((work / f"{name}-{rank}.json").read_text()) for rank in range(world)]
        assert all(one == seen[0] for one in seen), "all ranks say the same of a step"
        for (loss, norm, divergence, entropy), expected in zip(seen[0], trained.results[first:], strict=True):
            assert (loss, norm, divergence) == pytest.approx(expected, rel=results_bound, abs=results_bound)
            assert 0 < entropy < torch.log(torch.tensor(61.0))
