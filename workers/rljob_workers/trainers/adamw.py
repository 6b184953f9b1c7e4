"""AdamW on one flat buffer of weights: warm-up, clipping by the global norm, state as plain tensors.

Used by `torch_trainer` only. Weight decay is for matrices (the first `num_decayed` elements), not for norms and biases.
Source: Loshchilov & Hutter 2019, arXiv:1711.05101.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.optim.adamw import adamw

from rljob_workers.trainers.errors import NonFiniteGradient


@dataclass(frozen=True, slots=True)
class AdamWConfig:
    """Settings of the optimizer."""

    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    max_grad_norm: float
    """0: no clipping."""
    warmup_steps: int
    """The n-th step, n <= this, has learning rate * n / (this + 1)."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Views of the buffers, as far as one weight decay holds."""

    values: torch.Tensor
    gradient: torch.Tensor
    first_moment: torch.Tensor
    second_moment: torch.Tensor
    weight_decay: float


class FlatAdamW:
    """The optimizer of one flat float32 buffer."""

    def __init__(self, flat: torch.Tensor, gradient: torch.Tensor, num_decayed: int, config: AdamWConfig) -> None:
        self._config = config
        self._gradient = gradient
        self.steps = 0
        self.first_moment = torch.zeros_like(flat)
        self.second_moment = torch.zeros_like(flat)
        decays = ((slice(0, num_decayed), config.weight_decay), (slice(num_decayed, flat.numel()), 0.0))
        self._parts = [
            _Part(flat[part], gradient[part], self.first_moment[part], self.second_moment[part], decay)
            for part, decay in decays
            if part.start < part.stop
        ]

    def step(self) -> float:
        """Clips and steps with the mean gradient in the buffer; returns the norm before clipping.

        Raises NonFiniteGradient before anything is changed.
        """
        norm = float(self._gradient.norm())
        if not _is_finite(norm):
            raise NonFiniteGradient(
                f"optimizer step {self.steps + 1}: the norm of the gradient is {norm}. Nothing was stepped. Lower "
                "training.optimizer.learningRate, or use dtype float32."
            )
        limit = self._config.max_grad_norm
        if 0 < limit < norm:
            self._gradient.mul_(limit / norm)
        for part in self._parts:
            self._step(part)
        self.steps += 1
        return norm

    def _learning_rate(self) -> float:
        return self._config.learning_rate * min(1.0, (self.steps + 1) / (self._config.warmup_steps + 1))

    def _step(self, part: _Part) -> None:
        """By torch's function: its class would import the compiler, a second in every rank that trains."""
        config = self._config
        with torch.no_grad():
            adamw(
                [part.values],
                [part.gradient],
                [part.first_moment],
                [part.second_moment],
                [],
                [torch.tensor(float(self.steps), device=part.values.device)],
                fused=True,
                amsgrad=False,
                beta1=config.beta1,
                beta2=config.beta2,
                lr=self._learning_rate(),
                weight_decay=part.weight_decay,
                eps=config.epsilon,
                maximize=False,
            )


def _is_finite(value: float) -> bool:
    return value - value == 0.0
