"""Policy losses of single tokens. Pure torch: formula, shapes and source stand in each docstring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    """1.0 where a bound decides the loss. With `ppo_clip` and `gspo` the token has no gradient then, with `cispo` the
    largest that the bound leaves it."""
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Figures that a user's loss adds, by name: each [tokens], reported as `loss/NAME`, the mean over the tokens of the
    step that count."""


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


def cispo(
    new_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    rows: MaskedRows,  # noqa: ARG001 -- one signature
    *,
    high: float,
) -> TokenLosses:
    """CISPO: the ratio is a weight that is bounded from above, so that no token loses its gradient.

    Formula: loss = -sg(min(ratio, 1 + high)) A log pi_new, ratio = exp(new - old) as in `ppo_clip`. Its gradient is
    that of the unclipped ratio up to the bound. There is no lower bound: the paper switches its own off.
    `high`: the paper gives no value; Khatri et al. 2025 (ScaleRL, arXiv:2510.13786) bound the ratio near 5.
    Shapes: all [tokens] -> [tokens].
    Source: MiniMax 2025, MiniMax-M1, arXiv:2506.13585, equations 4 and 5.
    """
    ratio = ratio_of(new_log_probs.detach() - log_probs)
    weight = ratio.clamp(max=1.0 + high)
    return TokenLosses(-weight * advantages * new_log_probs, ratio, (ratio > weight).to(ratio.dtype))


@dataclass(frozen=True, slots=True)
class Temperatures:
    """How fast SAPO's gate closes as the ratio leaves 1; towards 0 it stays open."""

    positive: float
    """Of tokens with an advantage above 0."""
    negative: float
    """Of the others. Larger than `positive` in the paper: what pushes a token down pushes all others up."""


def sapo(
    new_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    rows: MaskedRows,  # noqa: ARG001 -- one signature
    *,
    temperatures: Temperatures,
) -> TokenLosses:
    """Soft adaptive policy optimisation: a gate that closes smoothly stands where PPO clips.

    Formula: loss = -A sigmoid(tau (ratio - 1)) 4 / tau, ratio = exp(new - old) as in `ppo_clip`, tau that of the
    advantage's sign. Its gradient is that of the unclipped ratio times 4 p (1 - p), p = sigmoid(tau (ratio - 1)):
    1 at ratio 1, and towards 0 on both sides, whatever the sign. Its objective is the mean over sequences:
    lossAggregation SequenceMean.
    Shapes: all [tokens] -> [tokens].
    Source: Gao et al. 2025, arXiv:2511.20347, section 3.
    """
    ratio = ratio_of(new_log_probs - log_probs)
    tau = torch.full_like(advantages, temperatures.negative).masked_fill(advantages > 0, temperatures.positive)
    gate = torch.sigmoid(tau * (ratio - 1.0)) * (4.0 / tau)
    return TokenLosses(-advantages * gate, ratio.detach(), torch.zeros_like(ratio.detach()))


def reinforce(
    new_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    rows: MaskedRows,  # noqa: ARG001 -- one signature
) -> TokenLosses:
    """The plain policy gradient: no ratio, and no bound.

    Formula: loss = -A log pi_new. At ratio 1 its gradient is that of `ppo_clip`; what several optimizer steps within a
    rollout move is not corrected. The ratio is reported all the same.
    Shapes: all [tokens] -> [tokens].
    Source: Williams 1992, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning",
    Machine Learning 8.
    """
    ratio = ratio_of(new_log_probs.detach() - log_probs)
    return TokenLosses(-advantages * new_log_probs, ratio, torch.zeros_like(ratio))


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
