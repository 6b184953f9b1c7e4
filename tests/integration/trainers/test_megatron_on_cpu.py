"""Nothing that makes Megatron run on a CPU is there in vain: without each part of it some layout fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljob_workers.trainers.megatron import cpu
from tests.integration.trainers.megatron_bench import ALL, Bench
from tests.integration.trainers.megatron_ranks import Run

FAILS = {
    "device": ("1", "qwen2"),
    "synchronize": ("PP2", "llama"),
    "literals": ("1", "qwen2"),
    "cuda method": ("PP2", "qwen3"),
    "type names": ("1", "qwen2"),
    "streams": ("EP2", "qwen3_moe"),
    "random states": ("TP2 SP", "qwen2"),
    "recomputed random states": ("PP2", "llama"),
    "split sizes": ("EP2", "qwen3_moe"),
    "uneven pieces": ("TP2 EP2 ETP2", "qwen3_moe"),
}


@pytest.mark.long
@pytest.mark.parametrize("part", list(cpu.PARTS))
def test_a_layout_fails_without_a_part(part: str, tmp_path: Path) -> None:
    layout, model = FAILS[part]
    chosen = ALL[layout]
    bench = Bench(tmp_path)
    with pytest.raises(AssertionError, match="Traceback"):
        bench.run(chosen.world, Run("without", model, 0, 1, chosen.parallelism, left_out=part))
