"""No rank ever holds the model: what a publication, a save and a restore take is its share, and one tensor.

For a model of another size: RLJOB_MEMORY_MODEL, its config.json as JSON.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.integration.trainers.worlds import run_world

WORLD = 2
MODEL = {
    "vocab_size": 4000,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
"""38 million parameters: 73 MiB as they are published, of which the largest tensor has 4."""
SLACK = 24 << 20
"""What a process has taken from the C library and not given back, and threads' stacks."""


def test_a_rank_never_holds_more_than_its_share_and_one_tensor(tmp_path: Path) -> None:
    model = json.loads(os.environ.get("RLJOB_MEMORY_MODEL", "null")) or MODEL
    program = "tests.integration.trainers.peak_ranks"
    run_world(program, world=WORLD, folder=tmp_path, arguments=["bfloat16", json.dumps(model)])
    tensor = 2 * max(model["vocab_size"], model["intermediate_size"]) * model["hidden_size"]
    for rank in range(WORLD):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found["publication"] <= found["part"] + 2 * tensor + SLACK
        assert found["save"] <= 3 * found["shard"] + SLACK, "both moments and the exact weights"
        assert found["restore"] <= SLACK, "the tensors of a checkpoint were read as a whole"
        whole = WORLD * found["part"]
        assert found["publication"] < whole, "the check would not see a rank that gathers the model"
