"""The learning rate of each optimizer step: warm-up, then constant, or down along a line or half a cosine. Pure.

Called by the trainers' optimizers, alike on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Fade = Callable[[float], float]
"""How much of the way down is left, 1 to 0, for a share of the steps that are over, 0 to 1."""


def constant(over: float) -> float:  # noqa: ARG001 - one signature
    """Stays up."""
    return 1.0


def linear(over: float) -> float:
    """Down along a line."""
    return 1.0 - over


def cosine(over: float) -> float:
    """Down along half a cosine. Source: Loshchilov & Hutter 2017, SGDR, arXiv:1608.03983, equation 5, one period."""
    return 0.5 * (1.0 + math.cos(math.pi * over))


@dataclass(frozen=True, slots=True)
class LearningRate:
    """The course of the learning rate over the job's optimizer steps."""

    peak: float
    lowest: float = 0.0
    """Where `fade` ends."""
    fade: Fade = constant
    warmup_steps: int = 0
    total_steps: int = 1
    """Of the whole job. A step beyond it (the job was made shorter meanwhile) has what the last one would have."""

    def of(self, step: int) -> float:
        """The learning rate of optimizer step `step`, the job's first being 0.

        The n-th of w steps of warm-up has peak * n / (w + 1), the first after them the peak; `lowest` is what the step
        after the last would have, so that the last still moves.
        """
        if step < self.warmup_steps:
            return self.peak * (step + 1) / (self.warmup_steps + 1)
        over = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        return self.lowest + (self.peak - self.lowest) * self.fade(min(1.0, over))
