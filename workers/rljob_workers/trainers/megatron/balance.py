"""How even the load of experts is, as losses and as figures of a step. Pure: sums over tokens, no model, no ranks.

`routers` adds the losses to a pass, `expert_load` adds up what was seen over ranks. Sums over a group of tokens come
out right over ranks that share its tokens, as long as each brings those of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rljob_workers.trainers.micro_batches import RowRange

if TYPE_CHECKING:
    from rljob_workers.trainers.megatron.inputs import PackedInputs

NormaliserOf = Callable[[RowRange], float]
"""What some whole rows add to the normaliser of an optimizer step."""


@dataclass(frozen=True, slots=True)
class Balance:
    """What is added to the loss for each layer with experts."""

    by_row: bool = False
    """Whether the tokens of each row are balanced by themselves; else those of a micro-batch."""
    aux_coefficient: float = 0.0
    z_coefficient: float = 0.0

    @property
    def is_on(self) -> bool:
        """Whether anything is added."""
        return self.aux_coefficient > 0 or self.z_coefficient > 0


NOT_BALANCED = Balance()
"""Nothing is added."""


@dataclass(frozen=True, slots=True, eq=False)
class RoutedTokens:
    """The tokens of one pass on one rank, as its routers see them: in groups that are balanced by themselves."""

    groups: torch.Tensor
    """[own tokens] int64: the group of each, and for padding the number of groups."""
    counts: torch.Tensor
    """[groups] float32: tokens of each, on all ranks that share the rows."""
    weights: torch.Tensor
    """[groups] float32: what each adds to the normaliser."""
    balance: Balance

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Of each group, without padding: [own tokens, n] -> [groups, n]."""
        zeros = values.new_zeros(len(self.counts) + 1, values.shape[1])
        return zeros.index_add(0, self.groups, values)[:-1]

    def aux_losses(self, chosen: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The balancing loss of each group, as far as it is of this rank's scores: [groups].

        E / (k T^2) sum over experts e of F_e P_e: of T tokens, F_e are those that went to e, k for each token, and P_e
        is the sum of the softmax over all E. 1 where both are even. Gradients go through P alone.
        `chosen` [groups, experts] is F, of all ranks; `scores` [own tokens, experts].
        Source: Fedus et al. 2021, Switch Transformers, arXiv:2101.03961, equation 4; for k > 1 as megatron-core has it.
        """
        tokens = self.counts.clamp(min=1.0)
        per_token = (chosen.sum(1) / tokens).clamp(min=1.0)
        return chosen.shape[1] * (chosen * self.sums(scores)).sum(1) / (per_token * tokens.square())

    def z_losses(self, logits: torch.Tensor) -> torch.Tensor:
        """Mean square of log-sum-exp of each group, as far as it is of this rank's logits: [groups].

        `logits` [own tokens, experts]. Source: Zoph et al. 2022, ST-MoE, arXiv:2202.08906, equation 5.
        """
        squares = torch.logsumexp(logits, -1, keepdim=True).square()
        return self.sums(squares)[:, 0] / self.counts.clamp(min=1.0)


def routed_tokens(
    inputs: PackedInputs, part: RowRange, responses: torch.Tensor, balance: Balance, normaliser_of: NormaliserOf
) -> RoutedTokens:
    """Of the rows of `part`, whose responses are of these lengths [rows of the slice].

    A group weighs what it adds to the normaliser, by which the sum of all losses of a step is divided: so the mean over
    groups is a weighted one, whatever they are and however many passes and ranks they take.
    """
    device = inputs.token_ids.device
    rows, lengths = inputs.rows, inputs.row_lengths
    if balance.by_row:
        ends = [part.first_token, *(part.first_token + responses[part.start : part.stop].cumsum(0)).tolist()]
        parts = [
            RowRange(row, row + 1, ends[row - part.start], ends[row - part.start + 1])
            for row in range(part.start, part.stop)
        ]
        counts = lengths.float()
    else:
        parts = [part]
        rows = (rows == len(lengths)).long()
        counts = lengths.sum()[None].float()
    weights = torch.tensor([normaliser_of(one) for one in parts], dtype=torch.float32)
    return RoutedTokens(rows.to(device), counts.to(device), weights.to(device), balance)
