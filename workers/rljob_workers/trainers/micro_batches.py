"""How the rows of a slice are cut into micro-batches. Pure; one plan for all trainers and forward models.

Rows stay in their order, so that the samples of a prompt stay together. A micro-batch takes rows as long as both bounds
hold; a row that is longer than the budget goes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class MicroBatchLimits:
    """What one forward and backward pass takes at most; None where something is not bounded."""

    rows: int | None = None
    tokens: int | None = None
    """Of prompts and responses together."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows [start, stop) of a slice, and their response tokens [first_token, last_token)."""

    start: int
    stop: int
    first_token: int
    last_token: int


def cut(
    lengths: torch.Tensor, response_lengths: torch.Tensor, limits: MicroBatchLimits, *, count: int = 0
) -> list[RowRange]:
    """The micro-batches of rows of `lengths` tokens, [rows], of which `response_lengths` are responses.

    At least `count` of them, empty ones last: what ranks do together they do equally often.
    """
    ends = [0, *response_lengths.cumsum(0).tolist()]
    cuts = [0, *_stops(lengths.tolist(), limits)]
    ranges = [RowRange(start, stop, ends[start], ends[stop]) for start, stop in pairwise(cuts)]
    end = RowRange(cuts[-1], cuts[-1], ends[-1], ends[-1])
    return ranges + [end] * (count - len(ranges))


def _stops(lengths: Sequence[int], limits: MicroBatchLimits) -> Iterator[int]:
    """Where each micro-batch ends."""
    rows = tokens = 0
    for row, length in enumerate(lengths):
        is_full = rows == limits.rows or (limits.tokens is not None and tokens + length > limits.tokens)
        if rows and is_full:
            yield row
            rows = tokens = 0
        rows, tokens = rows + 1, tokens + length
    if rows:
        yield len(lengths)
