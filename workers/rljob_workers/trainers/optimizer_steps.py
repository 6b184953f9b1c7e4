"""Optimizer steps: AdamW, the learning rate of each step, and steps that are skipped as not finite.

Used by the trainers. Skipped steps are skipped by all ranks alike, named, counted, and too many of them fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.optim.adamw import adamw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rljob_workers.algorithms.objective import Objective
    from rljob_workers.trainers.base import TrainRows
    from rljob_workers.trainers.micro_batches import MicroBatchLimits, RowRange


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


@dataclass(frozen=True, slots=True)
class AdamWConfig:
    """Settings of the optimizer."""

    learning_rate: LearningRate
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    max_grad_norm: float
    """0: no clipping."""

    def clipping(self, norm: float) -> float:
        """What a gradient of this norm is multiplied by."""
        return self.max_grad_norm / norm if 0 < self.max_grad_norm < norm else 1.0


@dataclass(frozen=True, slots=True, eq=False)
class AdamWPart:
    """Tensors that are stepped alike, all float32 and of one shape; the moments begin as zeros."""

    values: torch.Tensor
    first_moment: torch.Tensor
    second_moment: torch.Tensor
    weight_decay: float


class AdamW:
    """The optimizer of some tensors."""

    def __init__(self, parts: Sequence[AdamWPart], config: AdamWConfig) -> None:
        self._parts = parts
        self._config = config
        self.steps = 0
        """That were taken."""

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        """One step with the mean gradient of each part, in their order; clipped by the caller, who has the norm.

        By torch's function: its class would import the compiler, a second in every rank that trains.
        """
        rate = self._config.learning_rate.of(self.steps)
        for decay in {part.weight_decay for part in self._parts}:
            chosen = [place for place, part in enumerate(self._parts) if part.weight_decay == decay]
            parts = [self._parts[place] for place in chosen]
            with torch.no_grad():
                adamw(
                    [part.values for part in parts],
                    [gradients[place] for place in chosen],
                    [part.first_moment for part in parts],
                    [part.second_moment for part in parts],
                    [],
                    [torch.tensor(float(self.steps), device=part.values.device) for part in parts],
                    fused=True,
                    amsgrad=False,
                    beta1=self._config.beta1,
                    beta2=self._config.beta2,
                    lr=rate,
                    weight_decay=decay,
                    eps=self._config.epsilon,
                    maximize=False,
                )
        self.steps += 1


class FlatAdamW(AdamW):
    """The optimizer of one flat float32 buffer, whose first `num_decayed` elements are the matrices."""

    def __init__(self, flat: torch.Tensor, gradient: torch.Tensor, num_decayed: int, config: AdamWConfig) -> None:
        self._gradient = gradient
        self.first_moment = torch.zeros_like(flat)
        self.second_moment = torch.zeros_like(flat)
        decays = ((slice(0, num_decayed), config.weight_decay), (slice(num_decayed, flat.numel()), 0.0))
        places = [(place, decay) for place, decay in decays if place.start < place.stop]
        self._gradients = [gradient[place] for place, _ in places]
        super().__init__(
            [
                AdamWPart(flat[place], self.first_moment[place], self.second_moment[place], decay)
                for place, decay in places
            ],
            config,
        )

    def scale_and_step(self, scale: float) -> None:
        """One step with the mean gradient in the buffer times `scale`."""
        if scale != 1.0:
            self._gradient.mul_(scale)
        self.step(self._gradients)


SHOWN_ROWS = 8


NORM_STEPS = 10
"""Optimizer steps before a norm is judged, and the length of the running mean."""


@dataclass(slots=True)
class Suspects:
    """The losses of the rows of the optimizer step in work.

    Read only when something is wrong with the step: until then the loss of each token stays where it was computed.
    """

    _seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def add(self, rows: TrainRows, part: RowRange, token_losses: torch.Tensor) -> None:
        """Notes the losses [tokens] of one micro-batch."""
        if part.start < part.stop:
            chosen = slice(part.start, part.stop)
            self._seen.append((rows.numbers[chosen], rows.response_lengths[chosen], token_losses))

    def rows(self) -> list[int]:
        """Numbers of the rows whose loss is not finite, in the order in which they came."""
        found: list[int] = []
        for numbers, lengths, token_losses in self._seen:
            tokens = numbers.repeat_interleave(lengths)
            found += dict.fromkeys(tokens[~token_losses.isfinite().cpu()].tolist())
        return found

    def largest(self, count: int) -> list[int]:
        """Numbers of the rows whose token losses are the largest in sum, by amount, the largest first."""
        sums: dict[int, float] = {}
        for numbers, lengths, token_losses in self._seen:
            row_of_token = torch.arange(len(lengths)).repeat_interleave(lengths)
            amounts = torch.zeros(len(lengths)).index_add(0, row_of_token, token_losses.abs().float().cpu())
            sums |= dict(zip(numbers.tolist(), amounts.tolist(), strict=True))
        return sorted(sums, key=lambda row: -sums[row])[:count]

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


class NormWatch:
    """Which gradients are far larger than those before them: their steps are taken, and named."""

    def __init__(self, multiple: float) -> None:
        """Of the running norm; 0: none is named."""
        self._multiple = multiple
        self._running = 0.0
        self._steps = 0

    def judge(self, step: int, norm: float, suspects: Suspects) -> str | None:
        """Of optimizer step `step`, whose gradient has this finite norm: a sentence where it is beyond the multiple.

        The running norm is the mean of those before it, from the NORM_STEPS-th step on an exponential one. A norm of 0
        is of a step that had nothing to learn from, and does not count.
        """
        if norm == 0.0:
            return None
        running, steps = self._running, self._steps
        self._steps += 1
        self._running += (norm - running) / min(self._steps, NORM_STEPS)
        if steps < NORM_STEPS or not self._multiple or norm <= self._multiple * running:
            return None
        rows = ", ".join(str(row) for row in suspects.largest(SHOWN_ROWS))
        return (
            f"optimizer step {step} has a gradient of norm {norm:g}, {norm / running:.0f} times the running"
            f" norm {running:g}; of this rank's rows {rows} have the largest losses."
        )


def _named(rows: list[int]) -> str:
    if not rows:
        return "the loss of each row of this rank is finite."
    shown = ", ".join(str(row) for row in rows[:SHOWN_ROWS])
    more = f" and {len(rows) - SHOWN_ROWS} more" if len(rows) > SHOWN_ROWS else ""
    return f"the loss of row{'s' if len(rows) > 1 else ''} {shown}{more} is not finite."


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """The trainer's slice of the job."""

    dtype: torch.dtype
    """Of published weights, and of a forward pass where it is cast. The weights that are trained are float32 always."""
    limits: MicroBatchLimits
    temperature: float
    """Of the sampling: logits are divided by it before log-probs are taken."""
    objective: Objective
    optimizer: AdamWConfig
    max_skipped_steps: int
    norm_multiple: float
    """Of the running norm of the gradient, beyond which a step is named; 0: never."""
    role: str
    """Under whose name a checkpoint has the optimizer's state."""
