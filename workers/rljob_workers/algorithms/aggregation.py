"""Over what a loss is averaged: the weight of each token, made of whole rows.

A row of `AGGREGATIONS`, or an import path with the signature of `Aggregation`, names one in a job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from rljob_workers.algorithms.objective import MaskedRows, TokenWeights

Aggregation: TypeAlias = Callable[[MaskedRows], TokenWeights]


def token_mean(rows: MaskedRows) -> TokenWeights:
    """Every unmasked token counts alike: sum over tokens of m l / sum of m.

    Shapes: masks [tokens], response_lengths [rows] -> [tokens].
    Source: Yu et al. 2025, DAPO, arXiv:2503.14476, section 3.3.
    """
    return TokenWeights(rows.masks, rows.masks.sum())


def sequence_mean(rows: MaskedRows) -> TokenWeights:
    """Every sample counts alike: mean over rows of (sum of m l / sum of m); rows without a token do not count.

    Shapes: masks [tokens], response_lengths [rows] -> [tokens].
    Source: Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, equation 3.
    """
    weights = rows.masks / rows.spread(rows.counts.clamp(min=1.0))
    return TokenWeights(weights, (rows.counts > 0).sum().float())


def sequence_sum(rows: MaskedRows) -> TokenWeights:
    """Mean over rows of the sum of their tokens: sum over tokens of m l / rows; rows without a token do not count.

    Long responses weigh more, by their length. With a token in each row it is `token_mean` and `sequence_mean`.
    Shapes: masks [tokens], response_lengths [rows] -> [tokens].
    Source: the policy gradient of an episode, Williams 1992, Machine Learning 8; "seq-mean-token-sum" in verl.
    """
    return TokenWeights(rows.masks, (rows.counts > 0).sum().float())


def constant(rows: MaskedRows, *, length: int) -> TokenWeights:
    """Dr. GRPO: sum over tokens of m l / (rows x length), so that no response is weighted by its own length.

    `sequence_sum` divided by a constant, which keeps losses of the size of a mean: rows without a token do not count.
    With responses that all have `length` tokens it is `token_mean` and `sequence_mean`.
    Shapes: masks [tokens], response_lengths [rows] -> [tokens].
    Source: Liu et al. 2025, "Understanding R1-Zero-Like Training", arXiv:2503.20783, section 3.2; its code
    divides by the generation budget.
    """
    summed = sequence_sum(rows)
    return TokenWeights(summed.weights, summed.normaliser * length)
