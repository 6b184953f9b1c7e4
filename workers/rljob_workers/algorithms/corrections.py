"""Importance corrections: what is done about tokens that the trained policy did not make.

Each gives a weight per token, which multiplies its policy-gradient loss and never carries a gradient. The weight
covers staleness and the mismatch of engine and trainer; the clipped ratio new / log_probs covers the optimizer steps
within a rollout (decoupled PPO).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from rljob_workers.algorithms.objective import MaskedRows, ratio_of

Correction: TypeAlias = Callable[[torch.Tensor, torch.Tensor, MaskedRows], torch.Tensor]
"""(log_probs, rollout_log_probs, rows) -> weights, all [tokens]; of masked tokens the first two are 0."""


RatioOf: TypeAlias = Callable[[torch.Tensor, MaskedRows], torch.Tensor]
"""(log_probs - rollout_log_probs, rows) -> the ratio that a token is judged by, both [tokens]."""


def of_token(log_ratio: torch.Tensor, rows: MaskedRows) -> torch.Tensor:  # noqa: ARG001 -- one signature
    """That of the token: k_t = exp(log_ratio_t). Of low variance, and biased: what came before the token counts not."""
    return ratio_of(log_ratio)


def of_sequence(log_ratio: torch.Tensor, rows: MaskedRows) -> torch.Tensor:
    """That of the response, at each of its tokens: the product of k_t over the tokens that count.

    Unbiased, and of a variance that grows with the length. With one token it is `of_token`.
    """
    return rows.spread(ratio_of(rows.sums(log_ratio)))


def of_geometric_mean(log_ratio: torch.Tensor, rows: MaskedRows) -> torch.Tensor:
    """That of the response for each of its tokens: the product's n-th root, n its tokens that count.

    Does not grow with the length, so that bounds may lie close to 1. With one token it is `of_token`.
    """
    return rows.spread(ratio_of(rows.means(log_ratio)))


def importance_weights(
    log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, rows: MaskedRows, *, ratio: RatioOf = of_token
) -> torch.Tensor:
    """Decoupled PPO's weight as it is: w = k, the proximal over the behaviour policy.

    `log_probs` are the proximal policy's (the trainer's arithmetic, version r for rows of `train_r`),
    `rollout_log_probs` the behaviour policy's (the engine's arithmetic, whatever versions drew the tokens).
    Shapes: [tokens] -> [tokens].
    Source: Hilton et al. 2021, arXiv:2110.00641, equation 4; for language models Fu et al. 2025, AReaL,
    arXiv:2505.24298, section 5.
    """
    return ratio(log_probs - rollout_log_probs, rows).detach()


def truncated_weights(
    log_probs: torch.Tensor,
    rollout_log_probs: torch.Tensor,
    rows: MaskedRows,
    *,
    cap: float,
    ratio: RatioOf = of_token,
) -> torch.Tensor:
    """Truncated importance sampling (TIS).

    Formula: w = min(k, cap), k the ratio of proximal and behaviour policy as in `importance_weights`, whose result it
    is where no ratio reaches the cap.
    Shapes: [tokens] -> [tokens].
    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
    https://fengyao.notion.site/off-policy-rl; truncation: Ionides 2008, JCGS 17(2). By sequence: Liu et al. 2025, "When
    Speed Kills Stability", https://richardli.xyz/rl-collapse.
    """
    return ratio(log_probs - rollout_log_probs, rows).clamp(max=cap).detach()


def ice_pop(
    log_probs: torch.Tensor,
    rollout_log_probs: torch.Tensor,
    rows: MaskedRows,
    *,
    floor: float,
    cap: float,
    ratio: RatioOf = of_token,
) -> torch.Tensor:
    """IcePop: importance weights of tokens near each other, and none of the others.

    Formula: w = k where floor <= k <= cap, else 0, k as in `importance_weights`. A token on which engine and trainer
    disagree by more than that has no gradient, where truncation would give it the cap. With floor 0 it is AReaL's
    decoupled PPO with a cap; with the ratio of a sequence too, the masked importance sampling of TRL.
    Shapes: [tokens] -> [tokens].
    Source: Ling Team 2025, "Every Step Evolves: Scaling Reinforcement Learning for Trillion-Scale Thinking Model",
    arXiv:2510.18855, where IcePop is introduced (floor 0.5, cap 5).
    """
    found = ratio(log_probs - rollout_log_probs, rows)
    return torch.where((found >= floor) & (found <= cap), found, 0.0).detach()


@dataclass(frozen=True, slots=True)
class RatioMask:
    """Which tokens stay in the policy loss."""

    floor: float
    """Smallest ratio."""
    cap: float
    """Largest; infinity: any."""
    ratio: RatioOf = of_token


def masked_weights(
    log_probs: torch.Tensor,
    rollout_log_probs: torch.Tensor,
    rows: MaskedRows,
    *,
    mask: RatioMask,
    weigh: Correction | None,
) -> torch.Tensor:
    """A correction, and a mask by a ratio of its own beside it (rejection sampling).

    Formula: w = weigh(...) where mask.floor <= k <= mask.cap, else 0, k the mask's ratio; `weigh` None: weights of 1.
    A masked token has no policy loss but counts in the normaliser, which is made of whole rows before any pass. With
    bounds that no ratio reaches it is `weigh`.
    Shapes: [tokens] -> [tokens].
    Source: Liu et al. 2025, "When Speed Kills Stability", https://richardli.xyz/rl-collapse, where whole responses are
    masked, by the geometric mean too.
    """
    found = mask.ratio(log_probs - rollout_log_probs, rows)
    weights = torch.ones_like(found) if weigh is None else weigh(log_probs, rollout_log_probs, rows)
    return torch.where((found >= mask.floor) & (found <= mask.cap), weights, 0.0).detach()
