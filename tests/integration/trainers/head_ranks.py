"""One rank of a gang that holds a head together: log-probs, entropies and gradients of its part of the vocabulary."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from rljob_workers.algorithms.log_probs import VocabularyPart, chunked_log_probs
from rljob_workers.models.blob import write_blob
from rljob_workers.trainers.data_parallel import DataParallelGroup
from tests.integration.trainers.worlds import as_rank

TOKENS, WIDTH, VOCABULARY = 37, 24, 101
WORLD = 3


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(3)
    hidden = 2 * torch.randn(TOKENS, WIDTH, generator=chance, dtype=torch.float64)
    head = torch.randn(VOCABULARY, WIDTH, generator=chance, dtype=torch.float64) / WIDTH**0.5
    targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=chance)
    return hidden.to(dtype).requires_grad_(), head.to(dtype), targets


def first_rows(size: int) -> list[int]:
    """Of each part, and behind them the vocabulary: parts of one size, of which the last is not full."""
    rows = -(-VOCABULARY // size)
    return [min(rank * rows, VOCABULARY) for rank in range(size + 1)]


def main(folder: Path, group: DataParallelGroup, _: DeviceMesh) -> None:
    for size in range(1, WORLD + 1):
        ranks = distributed.new_group(list(range(size)))
        if group.rank >= size:
            continue
        assert isinstance(ranks, distributed.ProcessGroup), "a rank of it"
        ends = first_rows(size)
        part = VocabularyPart(ends[group.rank], ranks)
        for dtype in (torch.float32, torch.float64):
            hidden, head, targets = inputs(dtype)
            own = head[ends[group.rank] : ends[group.rank + 1]].clone().requires_grad_()
            log_probs, entropy = chunked_log_probs(
                hidden, own, targets, temperature=1.3, chunk_elements=8 * len(own), part=part
            )
            weights = torch.linspace(-1.0, 1.0, TOKENS, dtype=dtype)
            (log_probs @ weights + entropy @ weights.flip(0)).backward()  # type: ignore[no-untyped-call]
            assert hidden.grad is not None
            assert own.grad is not None
            found = {"log_probs": log_probs, "entropy": entropy, "hidden": hidden.grad, "head": own.grad}
            write_blob(folder / f"{size}-{dtype}-{group.rank}.safetensors", found)


if __name__ == "__main__":
    as_rank(main)
