"""REINFORCE++: no critic; the rollout as a whole is the baseline and the scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_workers.algorithms.advantages.group import group_centred
from rljob_workers.algorithms.advantages.token_rewards import DrawnTokens, whitened
from rljob_workers.tensors.columns import Column

if TYPE_CHECKING:
    import torch

    from rljob_workers.algorithms.advantages.estimator import AdvantageRows


def reinforce_plus_plus(rows: AdvantageRows) -> dict[Column, torch.Tensor]:
    """What comes from a token on, whitened over all drawn tokens of the rollout.

    Formula: G_t = sum over drawn tokens t' >= t of r_t', where r_t is minus the token's penalty, and at the last drawn
    token the row's reward as well; A_t = (G_t - mean) / sqrt(variance + 1e-8), with the unbiased variance.
    Shapes: AdvantageRows of a whole rollout -> advantages [tokens] float32, 0 at tokens that do not count.
    Source: Hu 2025, REINFORCE++, arXiv:2501.03262, section 3.
    """
    drawn = DrawnTokens(rows)
    return {Column.ADVANTAGES: drawn.spread(whitened(drawn.discounted_sums(drawn.rewards(), 1.0)))}


def reinforce_plus_plus_baseline(rows: AdvantageRows) -> dict[Column, torch.Tensor]:
    """A row's reward against the mean of its group, whitened over all drawn tokens of the rollout.

    Formula: A_t = (c - mean) / sqrt(variance + 1e-8) at every drawn token of a row, where c is the row's reward, less
    the penalties of all its tokens, less the mean of these over the valid rows of its group; mean and unbiased variance
    are over tokens, so that a long row counts for more.
    Shapes: AdvantageRows of a whole rollout -> advantages [tokens] float32, 0 at tokens that do not count.
    Source: Hu 2025, REINFORCE++, arXiv:2501.03262, section 3 (the variant with a baseline).
    """
    drawn = DrawnTokens(rows)
    rewards = rows.penalised_rewards().double().view(-1, rows.samples)
    centred = group_centred(rewards, rows.valid.view(-1, rows.samples)).flatten()
    return {Column.ADVANTAGES: drawn.spread(whitened(centred[drawn.row]))}
