"""Policy losses of single tokens. Pure torch: formula, shapes and source stand in each docstring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from rljob_workers.algorithms.objective import MaskedRows, ratio_of


@dataclass(frozen=True, slots=True, eq=False)
class TokenLosses:
    """Per token, all [tokens]. Only `loss` carries a gradient."""

    loss: torch.Tensor
    ratio: torch.Tensor
    """New over proximal policy, as the loss weighs it."""
    is_clipped: torch.Tensor
    """1.0 where a clip decides the loss: with `ppo_clip` and `gspo` the token has no gradient then."""


PolicyLoss: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, MaskedRows], TokenLosses]
"""(new_log_probs, log_probs, advantages, rows) -> losses, all [tokens]; of masked tokens the first three are 0."""


@dataclass(frozen=True, slots=True)
class ClipBounds:
    """How far the ratio of new to proximal policy counts."""

    low: float
    """Distance of the lower bound from 1."""
    high: float
    """Distance of the upper bound from 1."""
    dual: float | None = None
    """c > 1: a token with a negative advantage has at most the loss -A c. None: no bound."""


def ppo_clip(
    new_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    rows: MaskedRows,  # noqa: ARG001 -- one signature
    *,
    bounds: ClipBounds,
) -> TokenLosses:
    """PPO's pessimistic clip with separate bounds, and the dual clip.

    Formula: ratio = exp(new - old); loss = max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), where old is the proximal
    policy: version r for rows of `train_r`, not the behaviour policy (that difference is the correction's). With a dual
    clip c a loss of a negative advantage is min(loss, -A c).
    Shapes: all [tokens] -> [tokens].
    Source: Schulman et al. 2017, arXiv:1707.06347, equation 7; separate upper bound: Yu et al. 2025, DAPO,
    arXiv:2503.14476, section 3.1; dual clip: Ye et al. 2020, arXiv:1912.09729, equation 5; proximal against behaviour
    policy: Hilton et al. 2021, arXiv:2110.00641.
    """
    return clipped(ratio_of(new_log_probs - log_probs), advantages, bounds)


def gspo(
    new_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    rows: MaskedRows,
    *,
    bounds: ClipBounds,
) -> TokenLosses:
    """Group sequence policy optimisation: the ratio of a sequence, clipped as a whole.

    Formula: s_i = exp(mean over the tokens of row i of (new - old)); the ratio of each of its tokens is
    s_it = sg(s_i) pi_it / sg(pi_it), whose value is s_i and whose gradient is the token's own; loss as in `ppo_clip`.
    With one advantage for a row the gradient is that of s_i itself; with one token in a row the loss is PPO's.
    Bounds are far narrower than PPO's, since a mean moves less: the paper has 3e-4 and 4e-4. Its objective is the mean
    over sequences: lossAggregation SequenceMean.
    Shapes: all [tokens] -> [tokens]; the mean is over tokens that count.
    Source: Zheng et al. 2025, arXiv:2507.18071, equations 5, 7 and 13.
    """
    log_ratio = new_log_probs - log_probs
    of_row = rows.spread(rows.means(log_ratio.detach()))
    own = new_log_probs - new_log_probs.detach()
    return clipped(ratio_of(of_row + own), advantages, bounds)


def clipped(ratio: torch.Tensor, advantages: torch.Tensor, bounds: ClipBounds) -> TokenLosses:
    """The pessimistic clip of a ratio; all [tokens]."""
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - bounds.low, 1.0 + bounds.high)
    loss = torch.maximum(plain, bounded)
    is_clipped = bounded.detach() > plain.detach()
    if bounds.dual is not None:
        most = -advantages * bounds.dual
        is_bounded = (advantages < 0) & (loss.detach() > most)
        loss = torch.where(is_bounded, most, loss)
        is_clipped = is_clipped | is_bounded
    return TokenLosses(loss, ratio.detach(), is_clipped.to(ratio.dtype))


def masks_of_rows(loss_masks: torch.Tensor, response_lengths: torch.Tensor, learnt: torch.Tensor) -> torch.Tensor:
    """The masks, with 0 at every token of a row that is not learnt from.

    Sums, counts and means that go by the result are those of a batch without these rows.
    Shapes: loss_masks [tokens] uint8, response_lengths [rows] int64, learnt [rows] bool -> [tokens] uint8.
    """
    return loss_masks * learnt.repeat_interleave(response_lengths)
