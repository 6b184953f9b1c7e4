"""AdamW on float32 tensors: the step, and for one flat buffer also the norm, clipping and state.

Used by the trainers only. Weight decay is for matrices, not for norms and biases.
Source: Loshchilov & Hutter 2019, arXiv:1711.05101.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.optim.adamw import adamw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rljob_workers.trainers.learning_rate import LearningRate


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


class FlatAdamW:
    """The optimizer of one flat float32 buffer, whose first `num_decayed` elements are the matrices."""

    def __init__(self, flat: torch.Tensor, gradient: torch.Tensor, num_decayed: int, config: AdamWConfig) -> None:
        self._config = config
        self._gradient = gradient
        self.first_moment = torch.zeros_like(flat)
        self.second_moment = torch.zeros_like(flat)
        decays = ((slice(0, num_decayed), config.weight_decay), (slice(num_decayed, flat.numel()), 0.0))
        places = [(place, decay) for place, decay in decays if place.start < place.stop]
        self._gradients = [gradient[place] for place, _ in places]
        self._adamw = AdamW(
            [
                AdamWPart(flat[place], self.first_moment[place], self.second_moment[place], decay)
                for place, decay in places
            ],
            config,
        )

    @property
    def steps(self) -> int:
        """Optimizer steps that were taken."""
        return self._adamw.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._adamw.steps = steps

    def norm(self) -> float:
        """Of the gradient in the buffer."""
        return float(self._gradient.norm())

    def step(self, norm: float) -> None:
        """Clips the mean gradient in the buffer, which has this norm, and steps with it."""
        clipping = self._config.clipping(norm)
        if clipping != 1.0:
            self._gradient.mul_(clipping)
        self._adamw.step(self._gradients)
