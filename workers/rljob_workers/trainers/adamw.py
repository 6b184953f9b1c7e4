"""AdamW on one flat buffer of weights: warm-up, clipping by the global norm, state as plain tensors.

Used by `torch_trainer` only. Weight decay is for matrices (the first `num_decayed` elements), not for norms and biases.
Source: Loshchilov & Hutter 2019, arXiv:1711.05101.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rljob_workers.trainers.errors import NonFiniteGradient

if TYPE_CHECKING:
    from collections.abc import Mapping


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


class FlatAdamW:
    """The optimizer of one flat float32 buffer."""

    def __init__(self, flat: torch.Tensor, gradient: torch.Tensor, num_decayed: int, config: AdamWConfig) -> None:
        self._config = config
        self._gradient = gradient
        self.steps = 0
        self.first_moment = torch.zeros_like(flat)
        self.second_moment = torch.zeros_like(flat)
        matrices, vectors = slice(0, num_decayed), slice(num_decayed, flat.numel())
        self._parts = [part for part in (matrices, vectors) if part.start < part.stop]
        self._parameters = [self._parameter(flat[part], gradient[part]) for part in self._parts]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [parameter], "weight_decay": config.weight_decay if part is matrices else 0.0}
                for part, parameter in zip(self._parts, self._parameters, strict=True)
            ],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )
        self._bind_state()

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
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self._optimizer.step()
        self.steps += 1
        return norm

    def state(self) -> dict[str, torch.Tensor]:
        """The moments; the buffers themselves, not copies."""
        return {"optimizer.first_moment": self.first_moment, "optimizer.second_moment": self.second_moment}

    def restore(self, tensors: Mapping[str, torch.Tensor], steps: int) -> None:
        """Continues where a `state` and its count of steps were taken."""
        for name, buffer in self.state().items():
            buffer.copy_(tensors[name])
        self.steps = steps
        self._bind_state()

    def _learning_rate(self) -> float:
        return self._config.learning_rate * min(1.0, (self.steps + 1) / (self._config.warmup_steps + 1))

    @staticmethod
    def _parameter(values: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        parameter = values.detach().requires_grad_()
        parameter.grad = gradient
        return parameter

    def _bind_state(self) -> None:
        """Torch's optimizer works on our moments, so that they need no search through its state."""
        for part, parameter in zip(self._parts, self._parameters, strict=True):
            self._optimizer.state[parameter] = {
                "step": torch.tensor(float(self.steps)),
                "exp_avg": self.first_moment[part],
                "exp_avg_sq": self.second_moment[part],
            }


def _is_finite(value: float) -> bool:
    return value - value == 0.0
