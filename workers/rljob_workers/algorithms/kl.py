"""Per-token estimators of KL(policy || reference) from log-probs of sampled tokens.

Source of all three: Schulman 2020, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html.
With d = log p(x) - log q(x), p the policy, q the reference, x drawn from p. Shapes: [tokens] -> [tokens].
"""

import torch


def k1(log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """K1 = d: unbiased, high variance, may be negative. Its own gradient has mean 0, so it is of use as a metric."""
    return log_probs - ref_log_probs


def k2(log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """K2 = d^2 / 2: biased, low variance, never negative; the gradient of its mean is that of the KL."""
    return (log_probs - ref_log_probs).square() / 2


def k3(log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """K3 = exp(-d) - 1 + d: unbiased, low variance, never negative."""
    difference = ref_log_probs - log_probs
    return torch.expm1(difference) - difference
