"""Importance corrections: what is done about tokens that the trained policy did not make.

Each gives a weight per token, which multiplies its policy-gradient loss and never carries a gradient. The weight
covers staleness and the mismatch of engine and trainer; the clipped ratio new / log_probs covers the optimizer steps
within a rollout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from rljob_workers.algorithms.objective import MaskedRows, ratio_of

Correction: TypeAlias = Callable[[torch.Tensor, torch.Tensor, MaskedRows], torch.Tensor]
"""(log_probs, rollout_log_probs, rows) -> weights, all [tokens]; of masked tokens the first two are 0."""


def truncated_weights(
    log_probs: torch.Tensor,
    rollout_log_probs: torch.Tensor,
    rows: MaskedRows,  # noqa: ARG001 -- one signature
    *,
    cap: float,
) -> torch.Tensor:
    """Truncated importance sampling (TIS).

    Formula: w = min(exp(log_probs - rollout_log_probs), cap). `log_probs` are the proximal policy's (the trainer's
    arithmetic, version r for rows of `train_r`), `rollout_log_probs` the behaviour policy's (the engine's arithmetic,
    whatever versions drew the tokens).
    Shapes: [tokens] -> [tokens].
    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
    https://fengyao.notion.site/off-policy-rl; truncation: Ionides 2008, JCGS 17(2).
    """
    return ratio_of(log_probs - rollout_log_probs).clamp(max=cap).detach()


def ice_pop(
    log_probs: torch.Tensor,
    rollout_log_probs: torch.Tensor,
    rows: MaskedRows,  # noqa: ARG001 -- one signature
    *,
    floor: float,
    cap: float,
) -> torch.Tensor:
    """IcePop: importance weights of tokens near each other, and none of the others.

    Formula: k = exp(log_probs - rollout_log_probs); w = k where floor <= k <= cap, else 0. A token on which engine and
    trainer disagree by more than that has no gradient, where truncation would give it the cap.
    Shapes: [tokens] -> [tokens].
    Source: Ling Team 2025, "Every Step Evolves: Scaling Reinforcement Learning for Trillion-Scale Thinking Model",
    arXiv:2510.18855, where IcePop is introduced (floor 0.5, cap 5).
    """
    ratio = ratio_of(log_probs - rollout_log_probs)
    return torch.where((ratio >= floor) & (ratio <= cap), ratio, 0.0).detach()
