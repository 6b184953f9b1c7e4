"""AdamW on this rank's shard of every parameter. Nothing in it meets the other ranks: each steps what it holds.

    norm = sqrt(sum over the ranks of optimizer.square_sum()) * scale
    optimizer.step(scale * clipping)
    optimizer.clear()

Torch's fused kernel on the shards themselves: the same numbers as its class on sharded tensors, without their cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rljob_workers.trainers.adamw import AdamW, AdamWConfig, AdamWPart
from rljob_workers.trainers.fsdp.loading import local_rows

if TYPE_CHECKING:
    from collections.abc import Mapping


class ShardedAdamW:
    """The optimizer of one rank."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], config: AdamWConfig) -> None:
        self._parameters = parameters
        shards = {name: local_rows(parameter)[0] for name, parameter in parameters.items()}
        self.first_moments = {name: torch.zeros_like(shard) for name, shard in shards.items()}
        """Name in memory -> this rank's rows."""
        self.second_moments = {name: torch.zeros_like(shard) for name, shard in shards.items()}
        # A rank may have no rows at all of a small parameter.
        self._held = [name for name, shard in shards.items() if shard.numel()]
        self._adamw = AdamW(
            [
                AdamWPart(
                    shards[name],
                    self.first_moments[name],
                    self.second_moments[name],
                    config.weight_decay if shards[name].dim() >= 2 else 0.0,
                )
                for name in self._held
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

    def square_sum(self) -> float:
        """Of all elements of this rank's shard of the gradient."""
        gradients = self._gradients()
        if not gradients:
            return 0.0
        norms = torch.stack(torch._foreach_norm(gradients))
        return float(norms.double().square().sum())

    def step(self, scale: float) -> None:
        """One step with the gradient times `scale`."""
        gradients = self._gradients()
        torch._foreach_mul_(gradients, scale)
        self._adamw.step(gradients)

    def clear(self) -> None:
        """Drops the gradient."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def _gradients(self) -> list[torch.Tensor]:
        """This rank's rows, of what it holds; zeros for a parameter that nothing depended on."""
        return [self._gradient(name) for name in self._held]

    def _gradient(self, name: str) -> torch.Tensor:
        gradient = self._parameters[name].grad
        if gradient is None:
            return torch.zeros_like(self.first_moments[name])
        return local_rows(gradient)[0]
