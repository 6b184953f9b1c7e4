"""The clipped policy-gradient objective."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class ClippedLoss:
    """Per token, all [tokens]. Only `loss` carries a gradient."""

    loss: torch.Tensor
    ratio: torch.Tensor
    is_clipped: torch.Tensor
    """1.0 where the clipped branch is the larger loss, so that the token has no gradient."""


def ppo_clip(
    new_log_probs: torch.Tensor, log_probs: torch.Tensor, advantages: torch.Tensor, *, low: float, high: float
) -> ClippedLoss:
    """PPO's pessimistic clip with separate bounds.

    Formula: ratio = exp(new - old); loss = max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), where old is the proximal
    policy: version r for rows of `train_r`, not the behaviour policy (that difference is the correction's, see `tis`).
    Shapes: all [tokens] -> [tokens].
    Source: Schulman et al. 2017, arXiv:1707.06347, equation 7; separate upper bound: Yu et al. 2025, DAPO,
    arXiv:2503.14476, section 3.1; proximal against behaviour policy: Hilton et al. 2021, arXiv:2110.00641.
    """
    ratio = torch.exp(new_log_probs - log_probs)
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    return ClippedLoss(
        loss=torch.maximum(plain, clipped),
        ratio=ratio.detach(),
        is_clipped=(clipped.detach() > plain.detach()).to(ratio.dtype),
    )
