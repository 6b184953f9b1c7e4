"""The critic of the flat backend: a decoder with a value head.

Built by the factory. All but its head and its tensors is `flat_decoder`'s and `flat_model`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn import functional

from rljob_workers.algorithms.objective import Output, Outputs
from rljob_workers.models.value_head import VALUE_HEAD, check_critic_fit, critic_shapes
from rljob_workers.trainers.flat_decoder import Decoder
from rljob_workers.trainers.flat_model import FlatModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rljob_workers.trainers.micro_batches import PackedRows


class ValueDecoder(Decoder):
    """As a decoder, with one value for each token in the place of logits. It passes over a language head in `load`."""

    def values(self, tokens: torch.Tensor, plan: PackedRows) -> torch.Tensor:
        """The value of the state before every response token [T], on the decoder's device.

        Formula: head . x of the position that predicts the token, with products and sum in float32 at least.
        `tokens` are the values that `plan` was made of, both on the host.
        """
        cast = {name: leaf.to(self.compute) for name, leaf in self.leaves.items()}
        x_sh, predictor = self._predicting_states(cast, tokens, plan)
        wide = torch.promote_types(self.compute, torch.float32)
        return functional.linear(x_sh.to(wide), cast[VALUE_HEAD].to(wide)).squeeze(1)[predictor]

    def outputs_of(self, tokens: torch.Tensor, plan: PackedRows, temperature: float) -> Outputs:  # noqa: ARG002 -- there are no logits
        """The values."""
        return Outputs(values=self.values(tokens, plan))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return critic_shapes(self.config)

    def _check_fit(self, state: Mapping[str, torch.Tensor], source: str) -> None:
        check_critic_fit(state, self.config, source=source)


class FlatCritic(FlatModel):
    """A decoder with a value head, and its optimizer."""

    outputs: ClassVar[frozenset[Output]] = frozenset({Output.VALUES})
    kind: ClassVar[type[Decoder]] = ValueDecoder
