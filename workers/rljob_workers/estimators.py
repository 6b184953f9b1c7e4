"""From a job's `algorithm` to its estimator of advantages, by a table for each kind, and the columns that it gives.

For what computes advantages: the role of that name, and the rollout. Knows no queue and no batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from rljob_api.spec.advantages import Advantage, CutOff, GaeSpec, Whitening
from rljob_api.spec.algorithm import NoVariance
from rljob_workers.algorithms.advantages.distillation import distillation
from rljob_workers.algorithms.advantages.gae import gae
from rljob_workers.algorithms.advantages.group import group_centred, group_normalised, leave_one_out
from rljob_workers.algorithms.advantages.reinforce import reinforce_plus_plus, reinforce_plus_plus_baseline
from rljob_workers.algorithms.advantages.remax import remax
from rljob_workers.algorithms.kl import KL_ESTIMATES
from rljob_workers.user_algorithms import OwnAdvantage
from rljob_workers.user_functions import Signature

if TYPE_CHECKING:
    from rljob_api.spec.algorithm import AlgorithmSpec, KlSpec
    from rljob_workers.algorithms.advantages.estimator import BaselineEstimator, RowEstimator, TokenEstimator
    from rljob_workers.algorithms.kl import KlEstimate

ROW_ESTIMATORS: Mapping[str, RowEstimator] = {
    Advantage.GRPO: group_normalised,
    Advantage.DR_GRPO: group_centred,
    Advantage.RLOO: leave_one_out,
}

BASELINE_ESTIMATORS: Mapping[str, BaselineEstimator] = {
    Advantage.REMAX: remax,
}


def _gae(algorithm: AlgorithmSpec) -> TokenEstimator:
    chosen = algorithm.gae or GaeSpec()
    whitens = chosen.whiten is Whitening.PARTITION
    bootstraps = chosen.cut_off is CutOff.GOES_ON
    return partial(gae, gamma=chosen.gamma, trace_decay=chosen.lambda_, bootstraps=bootstraps, whitens=whitens)


TOKEN_ESTIMATORS: Mapping[str, Callable[[AlgorithmSpec], TokenEstimator]] = {
    Advantage.REINFORCE_PLUS_PLUS: lambda algorithm: reinforce_plus_plus,  # noqa: ARG005 - one signature
    Advantage.REINFORCE_PLUS_PLUS_BASELINE: lambda algorithm: reinforce_plus_plus_baseline,  # noqa: ARG005
    Advantage.GAE: _gae,
    Advantage.DISTILLATION: lambda algorithm: distillation,  # noqa: ARG005
}


_OWN = Signature(2, "rewards, valid", "def advantages(rewards, valid): return ...")


@dataclass(frozen=True, slots=True)
class KlPenalty:
    """What is taken off the reward of each drawn token: `coefficient` times an estimate of KL(policy || reference)."""

    coefficient: float
    estimate: KlEstimate


@dataclass(frozen=True, slots=True)
class JobEstimator:
    """The job's estimator, of one of three kinds, with what else is found in the rewards of groups."""

    of_rows: RowEstimator | None
    of_tokens: TokenEstimator | None
    finds_variance: bool
    penalty: KlPenalty | None = None
    """None: nothing is taken off rewards."""
    of_baselines: BaselineEstimator | None = None

    def of_samples(
        self, rewards: torch.Tensor, valid: torch.Tensor, samples: int, baselines: torch.Tensor | None
    ) -> torch.Tensor:
        """An advantage for each row, all [rows], of an estimator that gives such: float32.

        Rows are sorted by group, and groups of `samples` are whole, unless the estimator is one of baselines.
        Raises ValueError where a user's function does not give one finite number for each valid sample.
        """
        if self.of_baselines is not None:
            assert baselines is not None, "the rollout writes them for such an estimator"
            return self.of_baselines(rewards, valid, baselines).float()
        assert self.of_rows is not None, "the job's estimator is one of tokens"
        of_groups = rewards.view(-1, samples)
        return self.of_rows(of_groups, valid.view(-1, samples)).float().flatten()


def estimator_of(algorithm: AlgorithmSpec) -> JobEstimator:
    """The job's. Raises ValueError where a function of the user's cannot be loaded."""
    finds_variance = algorithm.no_variance is NoVariance.LEAVE_OUT
    of_rows, of_tokens, of_baselines = None, None, None
    if algorithm.advantage_traits.is_per_token:
        of_tokens = TOKEN_ESTIMATORS[algorithm.advantage](algorithm)
    elif algorithm.advantage_traits.needs_greedy:
        of_baselines = BASELINE_ESTIMATORS[algorithm.advantage]
    else:
        of_rows = _row_estimator(algorithm)
    return JobEstimator(of_rows, of_tokens, finds_variance, _penalty(algorithm.kl), of_baselines)


def _row_estimator(algorithm: AlgorithmSpec) -> RowEstimator:
    name = algorithm.advantage
    if name in ROW_ESTIMATORS:
        return ROW_ESTIMATORS[name]
    return OwnAdvantage.load(algorithm, "advantage", name, _OWN)  # type: ignore[no-any-return]


def _penalty(kl: KlSpec) -> KlPenalty | None:
    return KlPenalty(kl.coefficient, KL_ESTIMATES[kl.estimator]) if kl.is_in_reward else None


def has_variance(
    rewards: torch.Tensor, valid: torch.Tensor, samples: int, baselines: torch.Tensor | None = None
) -> torch.Tensor:
    """1 for rows of whole groups of `samples` whose valid rewards differ: all [rows], sorted by group -> [rows] uint8.

    A group of one valid sample, or of none, has no variance. A baseline is one more reward of its group: one that no
    sample differs from is a group in which every advantage is 0.
    """
    rewards, valid = rewards.view(-1, samples), valid.view(-1, samples)
    lowest = rewards.masked_fill(~valid, torch.inf).amin(1)
    highest = rewards.masked_fill(~valid, -torch.inf).amax(1)
    if baselines is not None:
        of_groups = baselines.view(-1, samples)[:, 0]
        lowest, highest = torch.minimum(lowest, of_groups), torch.maximum(highest, of_groups)
    return (lowest < highest).to(torch.uint8).repeat_interleave(samples)
