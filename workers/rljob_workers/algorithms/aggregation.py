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
