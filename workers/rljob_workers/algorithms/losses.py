"""Policy losses of single tokens. Pure torch: formula, shapes and source stand in each docstring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from rljob_workers.algorithms.objective import MaskedRows


@dataclass(frozen=True, slots=True, eq=False)
class TokenLosses:
    """Per token, all [tokens]. Only `loss` carries a gradient."""

    loss: torch.Tensor
    ratio: torch.Tensor
    """New over proximal policy, as the loss weighs it."""
    is_clipped: torch.Tensor
    """1.0 where the clipped branch is the larger loss, so that the token has no gradient."""


PolicyLoss: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, MaskedRows], TokenLosses]
"""(new_log_probs, log_probs, advantages, rows) -> losses, all [tokens]; of masked tokens the first three are 0."""


def ppo_clip(
    new_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    rows: MaskedRows,  # noqa: ARG001 -- one signature
    *,
    low: float,
    high: float,
) -> TokenLosses:
    """PPO's pessimistic clip with separate bounds.

    Formula: ratio = exp(new - old); loss = max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), where old is the proximal
    policy: version r for rows of `train_r`, not the behaviour policy (that difference is the correction's).
    Shapes: all [tokens] -> [tokens].
    Source: Schulman et al. 2017, arXiv:1707.06347, equation 7; separate upper bound: Yu et al. 2025, DAPO,
    arXiv:2503.14476, section 3.1; proximal against behaviour policy: Hilton et al. 2021, arXiv:2110.00641.
    """
    ratio = torch.exp(new_log_probs - log_probs)
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    return TokenLosses(
        loss=torch.maximum(plain, clipped),
        ratio=ratio.detach(),
        is_clipped=(clipped.detach() > plain.detach()).to(ratio.dtype),
    )


def masks_of_rows(loss_masks: torch.Tensor, response_lengths: torch.Tensor, learnt: torch.Tensor) -> torch.Tensor:
    """The masks, with 0 at every token of a row that is not learnt from.

    Sums, counts and means that go by the result are those of a batch without these rows.
    Shapes: loss_masks [tokens] uint8, response_lengths [rows] int64, learnt [rows] bool -> [tokens] uint8.
    """
    return loss_masks * learnt.repeat_interleave(response_lengths)
