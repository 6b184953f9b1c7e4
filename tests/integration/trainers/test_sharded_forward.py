"""A model that ranks hold together gives the log-probs of a whole one, on every rank, for any number of rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from rljob_workers.models.blob import read_blob
from tests.integration.trainers.sharded_forward_ranks import ROWS
from tests.integration.trainers.worlds import run_world
from tests.unit.trainers.fsdp.tiny import save_model

PROGRAM = "tests.integration.trainers.sharded_forward_ranks"
SHARE = 0.65
"""Of the memory of a whole model, that each of two ranks may take at most."""


def run(folder: Path, model: Path, world: int) -> list[dict[str, torch.Tensor]]:
    """The log-probs of each call, by rank."""
    run_world(PROGRAM, world=world, folder=folder / str(world), arguments=[str(model)])
    return [read_blob(folder / str(world) / f"rank{rank}.safetensors") for rank in range(world)]


def assert_alike(found: list[dict[str, torch.Tensor]], whole: dict[str, torch.Tensor]) -> None:
    for of_rank in found:
        assert set(of_rank) == {str(call) for call in range(len(ROWS))}
        for call, values in of_rank.items():
            assert torch.allclose(values, whole[call], rtol=0, atol=1e-5), call
            assert torch.equal(values, found[0][call]), "all ranks have the same"


@pytest.mark.parametrize("world", [3])
def test_log_probs_are_those_of_a_whole_model(tmp_path: Path, world: int) -> None:
    model = save_model("qwen3", tmp_path / "qwen3")
    (whole,) = run(tmp_path, model, 1)
    assert_alike(run(tmp_path, model, world), whole)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_each_of_two_ranks_takes_little_more_than_half_of_the_memory(tmp_path: Path) -> None:
    """A model of 60 million parameters, most of them in layers, as in large ones."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=1024,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=32,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=64,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(tmp_path / "model")
    size = sum(4 * parameter.numel() for parameter in model.parameters())
    del model
    (whole,) = run(tmp_path, tmp_path / "model", 1)
    assert_alike(run(tmp_path, tmp_path / "model", 2), whole)
    alone = json.loads((tmp_path / "1" / "rank0.json").read_text())
    peaks = [json.loads((tmp_path / "2" / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    shares = [peak / alone for peak in peaks]
    sys.stderr.write(f"of {size >> 20} MiB: whole {alone >> 20}, ranks {[peak >> 20 for peak in peaks]}: {shares}\n")
    assert max(shares) <= SHARE, shares
