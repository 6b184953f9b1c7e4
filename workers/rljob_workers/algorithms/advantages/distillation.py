"""On-policy distillation: a teacher grades every token that the student drew; rewards are not looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_workers.algorithms.advantages.token_rewards import DrawnTokens
from rljob_workers.tensors.columns import Column

if TYPE_CHECKING:
    import torch

    from rljob_workers.algorithms.advantages.estimator import AdvantageRows


def distillation(rows: AdvantageRows) -> dict[Column, torch.Tensor]:
    """How much likelier a token is to the teacher than to the policy before training.

    Formula: A_t = log pi_teacher(y_t) - log pi(y_t), minus the estimate k1 of KL(pi || pi_teacher) at the token. It
    is of the token alone: what it does to later tokens is left out (a discount of 0), and so are baseline and scale.
    The policy gradient with it is that of the reverse KL after each prefix, over prefixes that the student writes.
    Shapes: AdvantageRows with log_probs and ref_log_probs [tokens] -> advantages [tokens] float32, 0 at tokens that do
    not count.
    Source: Lu and Thinking Machines Lab 2025, "On-Policy Distillation"; Agarwal et al. 2024, GKD, arXiv:2306.13649,
    section 3, with samples of the student alone and the reverse KL; Gu et al. 2024, MiniLLM, arXiv:2306.08543, equation
    4, of which this is the term of a single step.
    """
    assert rows.log_probs is not None, "a row that is compared has log-probs of the policy"
    assert rows.ref_log_probs is not None, "the estimator's traits say that it needs those of a teacher"
    drawn = DrawnTokens(rows)
    return {Column.ADVANTAGES: drawn.spread(drawn.of(rows.ref_log_probs) - drawn.of(rows.log_probs))}
