"""Estimators of KL(policy || reference) at the tokens drawn, d = log pi(token) - log pi_ref(token).

Source of all: Schulman 2020, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch

from rljob_workers.algorithms.objective import LOG_RATIO_LIMIT

KlEstimate: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


K3_LIMIT = 10.0
"""One token that the reference all but excludes would else outweigh all others: K3 grows as the ratio does."""


def k1(log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """K1 = d: unbiased, high variance, may be negative.

    Its own gradient has mean 0, so without a weight it is of use as a metric only.
    """
    return log_probs - ref_log_probs


def k2(log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """K2 = d^2 / 2: biased, low variance, never negative; the gradient of its mean is that of the KL."""
    return (log_probs - ref_log_probs).square() / 2


def k3(log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """K3 = exp(-d) - 1 + d: unbiased, low variance, never negative; at most K3_LIMIT, without a gradient from there."""
    difference = (ref_log_probs - log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (torch.expm1(difference) - difference).clamp(max=K3_LIMIT)


KL_ESTIMATES: Mapping[str, KlEstimate] = {"K1": k1, "K2": k2, "K3": k3}
"""By the names of the manifest."""
