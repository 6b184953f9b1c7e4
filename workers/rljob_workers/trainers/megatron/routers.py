"""Routers of experts that count the tokens they deal, and add what balances them to the loss.

Megatron's own losses are not used: they do not know of rows that are packed with padding, and are divided by the
normaliser of the step as if it were a number of tokens. What a pass's tokens are comes with the pass, past the layers,
so that a layer that is computed again in the backward pass sees those of its own pass.
Imports Megatron: for `building`, once a model has experts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import tensor_parallel
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rljob_workers.trainers.megatron.balance import RoutedTokens


class _Added(torch.autograd.Function):
    """Gives its first input on, and the second, a loss, the gradient of one that is added to the loss."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:  # noqa: ANN401, ARG004 -- torch's
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN401, ARG004 -- torch's
        return gradients[0], gradients[0].new_ones(())


class CountingRouter(TopKRouter):  # type: ignore[misc] # of an untyped library
    """Of one layer."""

    def __init__(self, config: Any, pg_collection: Any = None) -> None:  # noqa: ANN401 -- of an untyped library
        super().__init__(config=config, pg_collection=pg_collection)
        self.passing: RoutedTokens | None = None
        """The tokens of the pass in work; None: nothing is counted."""
        self.seen: torch.Tensor | None = None
        """[experts + 2] float64, since it was last cleared: tokens of each expert, then the balancing loss and the
        z-loss, each group by its weight. Of this rank's tokens."""

    def routing(self, logits: torch.Tensor, padding_mask: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """Megatron's; then, where gradients are on, tokens are counted and losses added.

        A layer that is computed again passes here twice, and once with gradients.
        """
        probs, routing_map = super().routing(logits, padding_mask)
        if self.passing is None or not torch.is_grad_enabled():
            return probs, routing_map
        return self._counted(self.passing, logits.view(routing_map.shape), probs, routing_map), routing_map

    def _counted(
        self, passing: RoutedTokens, logits: torch.Tensor, probs: torch.Tensor, routing_map: torch.Tensor
    ) -> torch.Tensor:
        logits = logits.float()
        chosen = passing.sums(routing_map.float())
        seen = torch.cat([chosen.sum(0), chosen.new_zeros(2)]).double()
        balance = passing.balance
        if balance.is_on:
            if self.tp_cp_group.size() > 1:
                distributed.all_reduce(chosen, group=self.tp_cp_group)
            aux = passing.weights @ passing.aux_losses(chosen, torch.softmax(logits, -1))
            z = passing.weights @ passing.z_losses(logits)
            seen[-2:] = torch.stack([aux, z]).detach().double()
            probs = _Added.apply(probs, balance.aux_coefficient * aux + balance.z_coefficient * z)
        self.seen = seen if self.seen is None else self.seen + seen
        return probs


class CountedLayer(TransformerLayer):  # type: ignore[misc] # of an untyped library
    """Gives its router the tokens of the pass in work."""

    def __init__(self, *args: Any, **settings: Any) -> None:  # noqa: ANN401 -- of an untyped library
        super().__init__(*args, **settings)
        if self.mlp.moe_layer_recompute:
            # By itself it would be computed again as of whatever pass is in work by then.
            self.mlp.moe_layer_recompute = False
            self.mlp.forward = partial(_computed_again, self.mlp.router, self.mlp.forward)

    def forward(self, *args: Any, **settings: Any) -> Any:  # noqa: ANN401 -- of an untyped library
        """Megatron's."""
        self.mlp.router.passing = getattr(settings.get("packed_seq_params"), "routed", None)
        return super().forward(*args, **settings)


def _computed_again(
    router: CountingRouter,
    forward: Callable[[torch.Tensor], Any],
    hidden: torch.Tensor,
    padding_mask: None = None,  # noqa: ARG001 -- Megatron's
) -> Any:  # noqa: ANN401 -- of an untyped library
    passing = router.passing

    def run(again: torch.Tensor) -> Any:  # noqa: ANN401 -- of an untyped library
        router.passing = passing
        return forward(again)

    return tensor_parallel.checkpoint(run, False, hidden)


def routers_of(chunks: Iterable[torch.nn.Module]) -> list[CountingRouter]:
    """In their order."""
    return [module for chunk in chunks for module in chunk.modules() if isinstance(module, CountingRouter)]
