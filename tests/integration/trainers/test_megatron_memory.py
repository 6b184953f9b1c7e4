"""No rank of Megatron holds more than its part of a model and one and a half buckets while weights come and go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.trainers.megatron_peak_ranks import BUCKET_BYTES
from tests.integration.trainers.worlds import run_world
from tests.unit.trainers.fsdp.tiny import save_described

MODEL = {
    "model_type": "qwen3",
    "vocab_size": 8000,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
"""51 million parameters: 196 MiB in float32."""
SLACK = 2 << 20
"""What is imported and noted on the way."""
LAYOUTS = {"1": (1, {}), "TP2 SP": (2, {"tensor": 2}), "PP2": (2, {"pipeline": 2}), "DP2": (2, {})}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("memory")
    save_described(MODEL, work / "model")
    return work


@pytest.mark.long
@pytest.mark.parametrize(("world", "parallelism"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_import_takes_nothing_and_export_a_bucket_and_its_slices(
    world: int, parallelism: Mapping[str, int], folder: Path
) -> None:
    work = folder / "-".join(map(str, (world, *parallelism)))
    arguments = [json.dumps(dict(parallelism)), "float32"]
    run_world("tests.integration.trainers.megatron_peak_ranks", world=world, folder=work, arguments=arguments)
    bound = BUCKET_BYTES * 3 // 2  # what it gives, and a quarter that travels, twice: Gloo receives into a copy
    whole = 0
    for rank in range(world):
        found = json.loads((work / f"rank{rank}.json").read_text())
        assert found["import"] <= SLACK
        assert found["export"] <= bound
        assert found["bucket"] <= BUCKET_BYTES
        whole = max(whole, found["parameters"])
    assert whole > bound, "the check would not see a rank that gathers its model"
