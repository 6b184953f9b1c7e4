"""How token losses become one number: weights of tokens, and the normaliser by which their weighted sum is divided.

The division comes last, after sums and normalisers of all micro-batches and data-parallel ranks were added up: only so
is the result independent of how a global batch is cut.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class TokenWeights:
    """`weights` [tokens] float32, `normaliser` [] float32; loss = sum(weights * token loss) / sum of normalisers."""

    weights: torch.Tensor
    normaliser: torch.Tensor


def token_mean(loss_masks: torch.Tensor, response_lengths: torch.Tensor) -> TokenWeights:  # noqa: ARG001 -- one signature
    """Every unmasked token counts alike: sum over tokens of m l / sum of m.

    Shapes: loss_masks [tokens], response_lengths [rows] -> [tokens].
    Source: Yu et al. 2025, DAPO, arXiv:2503.14476, section 3.3.
    """
    weights = loss_masks.float()
    return TokenWeights(weights, weights.sum())


def sequence_mean(loss_masks: torch.Tensor, response_lengths: torch.Tensor) -> TokenWeights:
    """Every sample counts alike: mean over rows of (sum of m l / sum of m); rows without a token do not count.

    Shapes: loss_masks [tokens], response_lengths [rows] -> [tokens].
    Source: Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, equation 3.
    """
    mask = loss_masks.float()
    device, num_rows = mask.device, response_lengths.numel()
    row_of_token = torch.arange(num_rows, device=device).repeat_interleave(response_lengths)
    counts = torch.zeros(num_rows, device=device).index_add_(0, row_of_token, mask)
    weights = mask / counts.clamp(min=1.0)[row_of_token]
    return TokenWeights(weights, (counts > 0).sum().float())
