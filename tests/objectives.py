"""Objectives of tests, by what differs."""

from __future__ import annotations

from functools import partial

from rljob_workers.algorithms.aggregation import Aggregation, token_mean
from rljob_workers.algorithms.corrections import truncated_weights
from rljob_workers.algorithms.kl import k3
from rljob_workers.algorithms.losses import ClipBounds, ppo_clip
from rljob_workers.algorithms.policy import KlTerm, PolicyObjective


def clip_objective(
    aggregate: Aggregation = token_mean, *, kl: float = 0.05, cap: float | None = 2.0, entropy_bonus: float = 0.0
) -> PolicyObjective:
    """PPO's clip to [0.8, 1.28]; `kl` 0: no such term; `cap` None: no correction."""
    return PolicyObjective(
        partial(ppo_clip, bounds=ClipBounds(0.2, 0.28)),
        aggregate,
        kl=KlTerm(kl, k3) if kl else None,
        correct=None if cap is None else partial(truncated_weights, cap=cap),
        entropy_bonus=entropy_bonus,
    )
