"""Optimizer steps whose loss or gradient is not finite: skipped by all ranks alike, named, counted, and too many fail.

Used by the trainers. Loss and norm are sums over all ranks, so that every rank comes to the same verdict by itself;
which rows it was, each rank says of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from rljob_workers.trainers.base import TrainRows
    from rljob_workers.trainers.micro_batches import RowRange

SHOWN_ROWS = 8


@dataclass(slots=True)
class Suspects:
    """Which rows of the optimizer step in work had a loss that is not finite.

    Looked at only when a step is skipped: until then a flag for each token stays where it was computed.
    """

    _seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def add(self, rows: TrainRows, part: RowRange, token_losses: torch.Tensor) -> None:
        """Notes the losses [tokens] of one micro-batch."""
        if part.start < part.stop:
            chosen = slice(part.start, part.stop)
            self._seen.append((rows.numbers[chosen], rows.response_lengths[chosen], ~torch.isfinite(token_losses)))

    def rows(self) -> list[int]:
        """Their numbers, in the order in which they came."""
        found: list[int] = []
        for numbers, lengths, is_broken in self._seen:
            tokens = numbers.repeat_interleave(lengths)
            found += dict.fromkeys(tokens[is_broken.cpu()].tolist())
        return found

    def clear(self) -> None:
        """The step is over."""
        self._seen.clear()


class Skipping:
    """The verdict over each optimizer step."""

    def __init__(self, limit: int) -> None:
        """`limit` steps in a row may be skipped."""
        self._limit = limit
        self._in_a_row = 0

    def judge(self, step: int, loss: float, norm: float, suspects: Suspects) -> str | None:
        """Why the step must be skipped, in a sentence; None where it may be taken.

        `step` is its number, the first being 1. Raises ValueError for one more than the limit.
        """
        if math.isfinite(loss) and math.isfinite(norm):
            self._in_a_row = 0
            return None
        self._in_a_row += 1
        why = f"optimizer step {step} has loss {loss:g} and a gradient of norm {norm:g}: {_named(suspects.rows())}"
        if self._in_a_row > self._limit:
            raise ValueError(
                f"training.maxSkippedSteps: {self._in_a_row} optimizer steps in a row were not finite, the limit is "
                f"{self._limit}; {why} Lower training.optimizer.learningRate, look at these rows, or use dtype float32."
            )
        return f"{why} It is skipped, {self._in_a_row} in a row."


def _named(rows: list[int]) -> str:
    if not rows:
        return "the loss of each row of this rank is finite."
    shown = ", ".join(str(row) for row in rows[:SHOWN_ROWS])
    more = f" and {len(rows) - SHOWN_ROWS} more" if len(rows) > SHOWN_ROWS else ""
    return f"the loss of row{'s' if len(rows) > 1 else ''} {shown}{more} is not finite."
