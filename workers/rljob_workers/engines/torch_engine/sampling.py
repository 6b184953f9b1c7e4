"""Drawing tokens: one uniform number per (seed, position), inverted through the distribution's sums.

Pure. A sample's tokens depend on its own logits, parameters, seed and position only: no generator is shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rljob_workers.devices import moved

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True, eq=False)
class SamplingColumns:
    """Parameters of B slots, a column each."""

    temperature: npt.NDArray[np.float32]
    """0 means greedy; log-probs are then of temperature 1."""
    top_p: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int64]
    """0 means all tokens."""
    seed: npt.NDArray[np.uint64]


def uniforms(seed: npt.NDArray[np.uint64], position: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1 - 2^-52], by two rounds of splitmix64 (Steele, Lea, Flood 2014): counter-based, no state.

    52 bits, so that number * sum is below the sum in float64 whatever the rounding.
    """
    with np.errstate(over="ignore"):
        mixed = _splitmix(_splitmix(seed) + position.astype(np.uint64))
    return (mixed >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _splitmix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = values + _GAMMA
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def draw_tokens(
    logits: torch.Tensor, columns: SamplingColumns, positions: npt.NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [B] int64 and their log softmax(logits / temperature) [B] float32 (before top-p and top-k).

    Drawn on the device of the logits, where the answer stays.
    """
    greedy = columns.temperature == 0
    divisor = np.where(greedy, np.float32(1), columns.temperature)
    if (divisor != 1).any():
        logits = logits / _beside(logits, divisor)[:, None]
    shifted = logits - logits.amax(-1, keepdim=True)
    weights = shifted.exp()
    tokens = _draw(weights, columns, greedy, positions)
    chosen = shifted.gather(-1, tokens[:, None])[:, 0]
    return tokens, chosen - weights.sum(-1).log()


def _draw(
    weights: torch.Tensor,
    columns: SamplingColumns,
    greedy: npt.NDArray[np.bool_],
    positions: npt.NDArray[np.int64],
) -> torch.Tensor:
    chances = _beside(weights, uniforms(columns.seed, positions))
    vocab_size = weights.shape[1]
    is_cut = ~greedy & ((columns.top_p < 1) | ((columns.top_k > 0) & (columns.top_k < vocab_size)))
    if not greedy.any() and not is_cut.any():
        return _invert(weights, chances)
    tokens = torch.empty(weights.shape[0], dtype=torch.int64, device=weights.device)
    rows = _beside(weights, np.flatnonzero(greedy))
    tokens[rows] = weights[rows].argmax(-1)
    rows = _beside(weights, np.flatnonzero(is_cut))
    top_p, top_k = _beside(weights, columns.top_p[is_cut]), _beside(weights, columns.top_k[is_cut])
    tokens[rows] = _draw_cut(weights[rows], chances[rows], top_p, top_k)
    rows = _beside(weights, np.flatnonzero(~greedy & ~is_cut))
    tokens[rows] = _invert(weights[rows], chances[rows])
    return tokens


def _beside(tensor: torch.Tensor, column: npt.NDArray[Any]) -> torch.Tensor:
    return moved(torch.from_numpy(column), tensor.device)


def _invert(weights: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """The first token whose running sum exceeds chance * total."""
    sums = weights.cumsum(-1, dtype=torch.float64)
    goals = (chances * sums[:, -1])[:, None]
    found = torch.searchsorted(sums, goals, right=True)[:, 0]
    return found.clamp_(max=weights.shape[1] - 1)


def _draw_cut(weights: torch.Tensor, chances: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Keeps the top_k likeliest tokens, then of these the fewest whose share reaches top_p; the first always stays."""
    vocab_size = weights.shape[1]
    ordered, tokens = weights.sort(dim=-1, descending=True, stable=True)
    limit = torch.where(top_k > 0, top_k, vocab_size)[:, None]
    ordered = ordered.masked_fill(torch.arange(vocab_size, device=limit.device) >= limit, 0.0)
    sums = ordered.cumsum(-1, dtype=torch.float64)
    before = sums - ordered
    is_out = before >= top_p.double()[:, None] * sums[:, -1:]
    is_out[:, 0] = False
    chosen = _invert(ordered.masked_fill(is_out, 0.0), chances)
    return tokens.gather(-1, chosen[:, None])[:, 0]
