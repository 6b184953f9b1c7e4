"""Generalised advantage estimation: a token is measured against what a critic expected from it on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rljob_workers.algorithms.advantages.token_rewards import DrawnTokens, whitened
from rljob_workers.tensors.columns import Column

if TYPE_CHECKING:
    from rljob_workers.algorithms.advantages.estimator import AdvantageRows


def gae(
    rows: AdvantageRows, *, gamma: float, trace_decay: float, bootstraps: bool, whitens: bool
) -> dict[Column, torch.Tensor]:
    """GAE over the tokens that the model drew, and the returns that the critic is trained on.

    Formula: delta_t = r_t + gamma V_{t+1} - V_t; A_t = delta_t + gamma lambda A_{t+1}; R_t = A_t + V_t. V_t is what was
    expected before token t was drawn. t + 1 is the next token that the model drew: over what a tool wrote in between
    the recursion goes as if it were not there, and there A and R are 0. r_t is minus the penalty of the token, and at
    the last drawn token of a valid row its reward as well.
    After the last drawn token nothing is expected any more (V = 0). With `bootstraps` that is not so where the answer
    was cut off: it would have gone on. What is expected after its last token would need another pass of the critic; the
    value at the last drawn token stands for it, which is the same but for one token's news.
    With `whitens`, A (and not R) is then whitened over all drawn tokens of these rows: mean 0, variance 1.
    Shapes: AdvantageRows with values [tokens] -> advantages and returns, both [tokens] float32.
    Source: Schulman et al. 2016, arXiv:1506.02438, equations 11, 12 and 16; whitening as in Huang et al. 2022, "The 37
    Implementation Details of PPO", detail 7, but over the rollout.
    """
    assert rows.values is not None, "the estimator's traits say that it needs values"
    drawn = DrawnTokens(rows)
    values = drawn.of(rows.values)
    following = drawn.following(values)
    if bootstraps:
        following = torch.where(drawn.is_last & rows.cut_off[drawn.row], values, following)
    advantages = drawn.discounted_sums(drawn.rewards() + gamma * following - values, gamma * trace_decay)
    returns = drawn.spread(advantages + values)
    return {
        Column.ADVANTAGES: drawn.spread(whitened(advantages) if whitens else advantages),
        Column.RETURNS: returns,
    }
