"""Drawing tokens, checked against hand-made distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rljob_workers.engines.torch_engine.slots import SamplingColumns, draw_tokens, uniforms

PINNED = [0.6524484863740321, 0.36818951565166946, 0.20852775745463292]
LOGITS = torch.tensor([0.4, 0.1, 0.3, 0.2]).log()


def columns(
    count: int, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0
) -> SamplingColumns:
    return SamplingColumns(
        temperature=np.full(count, temperature, dtype=np.float32),
        top_p=np.full(count, top_p, dtype=np.float32),
        top_k=np.full(count, top_k, dtype=np.int64),
        min_p=np.full(count, min_p, dtype=np.float32),
        seed=np.arange(count, dtype=np.uint64),
    )


def frequencies(given: SamplingColumns) -> list[float]:
    count = given.seed.size
    tokens, _ = draw_tokens(LOGITS.expand(count, 4), given, np.zeros(count, dtype=np.int64))
    return (torch.bincount(tokens, minlength=4) / count).tolist()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, [0.4, 0.1, 0.3, 0.2], id="plain sampling follows the distribution"),
        pytest.param({"top_k": 2}, [4 / 7, 0, 3 / 7, 0], id="top-k keeps the k likeliest"),
        pytest.param({"top_p": 0.65}, [4 / 7, 0, 3 / 7, 0], id="top-p keeps the fewest that reach p"),
        pytest.param({"top_p": 0.75}, [4 / 9, 0, 3 / 9, 2 / 9], id="top-p takes the token that crosses p"),
        pytest.param({"top_p": 0.01}, [1, 0, 0, 0], id="the likeliest token always stays"),
        pytest.param({"top_k": 2, "top_p": 0.5}, [4 / 7, 0, 3 / 7, 0], id="top-p is of all tokens beside top-k"),
        pytest.param({"min_p": 0.45}, [4 / 9, 0, 3 / 9, 2 / 9], id="min-p keeps those near the likeliest"),
        pytest.param({"min_p": 0.6, "temperature": 2.0}, [0.4, 0, 0.345, 0.285], id="min-p is after temperature"),
        pytest.param({"min_p": 0.45, "top_p": 0.5}, [4 / 7, 0, 3 / 7, 0], id="top-p leaves less than min-p"),
        pytest.param({"min_p": 0.7, "top_k": 3, "top_p": 0.9}, [4 / 7, 0, 3 / 7, 0], id="min-p leaves least"),
        pytest.param({"min_p": 1.0}, [1, 0, 0, 0], id="a min-p of 1 leaves the likeliest"),
        pytest.param({"temperature": 0.5}, [16 / 30, 1 / 30, 9 / 30, 4 / 30], id="temperature sharpens"),
        pytest.param({"temperature": 0.0}, [1, 0, 0, 0], id="temperature 0 is greedy"),
    ],
)
def test_frequencies(changes: dict[str, float], expected: list[float]) -> None:
    assert frequencies(columns(20000, **changes)) == pytest.approx(expected, abs=0.015)  # type: ignore[arg-type]


def test_rows_of_different_kinds_are_drawn_as_if_alone() -> None:
    cut = [columns(1, top_k=1), columns(1, top_p=0.5, temperature=2.0), columns(1, min_p=0.7)]
    kinds = [columns(1), columns(1, temperature=0.0), *cut]
    names = ("temperature", "top_p", "top_k", "min_p", "seed")
    mixed = SamplingColumns(*(np.concatenate([getattr(kind, name) for kind in kinds]) for name in names))
    positions = np.array([3, 1, 4, 1, 5])
    tokens, log_probs = draw_tokens(LOGITS.expand(5, 4), mixed, positions)
    for index, kind in enumerate(kinds):
        token, log_prob = draw_tokens(LOGITS.expand(1, 4), kind, positions[index : index + 1])
        assert (int(token), float(log_prob)) == (int(tokens[index]), float(log_probs[index]))


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 0.1}, {"min_p": 0.9}])
def test_log_probs_are_of_all_tokens(cut: dict[str, float]) -> None:
    tokens, log_probs = draw_tokens(LOGITS.expand(1, 4), columns(1, **cut), np.zeros(1, dtype=np.int64))  # type: ignore[arg-type]
    assert int(tokens) == 0
    assert float(log_probs) == pytest.approx(np.log(0.4), abs=1e-6)


def test_uniforms_are_pinned() -> None:
    """A sample that is drawn again after a restart must be the same sample."""
    found = uniforms(np.array([0, 1, 2**64 - 1], dtype=np.uint64), np.array([0, 0, 5]))
    again = uniforms(np.array([2**64 - 1], dtype=np.uint64), np.array([5]))
    assert found[2] == again[0]
    assert found.tolist() == PINNED


def test_uniforms_are_spread_over_seeds_and_positions() -> None:
    seeds, positions = np.meshgrid(np.arange(100, dtype=np.uint64), np.arange(100))
    found = uniforms(seeds.ravel(), positions.ravel())
    assert found.min() >= 0
    assert found.max() < 1
    assert np.unique(found).size == found.size
    counts, _ = np.histogram(found, bins=10, range=(0, 1))
    assert counts.min() > 900
    grid = found.reshape(100, 100)
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.05
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.05
