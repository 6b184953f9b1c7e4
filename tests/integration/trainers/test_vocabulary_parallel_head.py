"""A head that ranks hold together gives what one rank's gives: log-probs, entropies and their gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rljob_workers.algorithms.log_probs import chunked_log_probs
from rljob_workers.models.blob import read_blob
from tests.integration.trainers.head_ranks import TOKENS, WORLD, first_rows, inputs
from tests.integration.trainers.worlds import run_world
from tests.near import assert_near


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("head")
    run_world("tests.integration.trainers.head_ranks", world=WORLD, folder=work)
    return work


def of_all_logits() -> dict[str, torch.Tensor]:
    """In float64, all logits at once."""
    hidden, head, targets = inputs(torch.float64)
    head.requires_grad_()
    of_all = torch.log_softmax(hidden @ head.t() / 1.3, -1)
    log_probs, entropy = of_all.gather(1, targets[:, None])[:, 0], -(of_all.exp() * of_all).sum(-1)
    weights = torch.linspace(-1.0, 1.0, TOKENS, dtype=torch.float64)
    (log_probs @ weights + entropy @ weights.flip(0)).backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert head.grad is not None
    return {"log_probs": log_probs, "entropy": entropy, "hidden": hidden.grad, "head": head.grad}


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 5e-6)], ids=str)
@pytest.mark.parametrize("size", range(1, WORLD + 1))
def test_parts_of_a_head_are_the_whole_head(size: int, dtype: torch.dtype, bound: float, folder: Path) -> None:
    expected = of_all_logits()
    parts = [read_blob(folder / f"{size}-{dtype}-{rank}.safetensors") for rank in range(size)]
    targets, ends = inputs(dtype)[2], first_rows(size)
    assert all(bool(((targets >= ends[rank]) & (targets < ends[rank + 1])).any()) for rank in range(size))
    for key in ("log_probs", "entropy"):
        assert all(torch.equal(part[key], parts[0][key]) for part in parts), "all ranks have the same results"
        assert_near(parts[0][key], expected[key], bound, key)
    assert_near(torch.stack([part["hidden"] for part in parts]).sum(0), expected["hidden"], bound, "hidden states")
    assert_near(torch.cat([part["head"] for part in parts]), expected["head"], bound, "head")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_part_that_is_the_whole_head_gives_the_same_bits(dtype: torch.dtype, folder: Path) -> None:
    found = read_blob(folder / f"1-{dtype}-0.safetensors")
    hidden, head, targets = inputs(dtype)
    head.requires_grad_()
    log_probs, entropy = chunked_log_probs(hidden, head, targets, temperature=1.3, chunk_elements=8 * len(head))
    weights = torch.linspace(-1.0, 1.0, TOKENS, dtype=dtype)
    (log_probs @ weights + entropy @ weights.flip(0)).backward()  # type: ignore[no-untyped-call]
    own = {"log_probs": log_probs, "entropy": entropy, "hidden": hidden.grad, "head": head.grad}
    for key, one in own.items():
        assert one is not None
        assert torch.equal(found[key], one.detach()), key
