"""The objective of policy optimisation: policy loss, correction, KL term and aggregation put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rljob_workers.algorithms.aggregation import Aggregation
from rljob_workers.algorithms.corrections import Correction
from rljob_workers.algorithms.kl import KlEstimate, k3
from rljob_workers.algorithms.losses import PolicyLoss
from rljob_workers.algorithms.objective import (
    LossSums,
    MaskedRows,
    Metric,
    MetricValues,
    Objective,
    Output,
    Outputs,
    Reduction,
    ratio_of,
)
from rljob_workers.tensors.columns import Column


@dataclass(frozen=True, slots=True)
class KlTerm:
    """`coefficient` times KL(policy || reference) is added to the loss of each token.

    Weighted, the estimate is multiplied by the ratio of new and behaviour policy, with its gradient: by new / proximal
    and the correction's weight. With weights that are not truncated the gradient of K1 and K3 is then that of the KL,
    whichever policy drew the tokens; that of K3 without a weight is not even where the policy itself did. A token that
    the correction masks has no KL term either.
    Source: DeepSeek-AI 2025, DeepSeek-V3.2, arXiv:2512.02556, section 3.1, "unbiased KL estimate".
    """

    coefficient: float
    estimate: KlEstimate
    is_weighted: bool = False


def _mean(name: str, unit: str, formula: str) -> Metric:
    return Metric(name, Reduction.TOKEN_MEAN, unit, formula)


ENTROPY = _mean(
    "policy/entropy",
    "nats",
    "entropy of the policy at each token; -log pi of what was drawn with Flat and no entropyBonus",
)


APPROXIMATE_KL = _mean("policy/approx_kl", "nats", "ratio - 1 - log ratio of new over proximal policy (k3)")


RATIO = _mean("policy/ratio", "", "pi_new / pi_proximal, as the loss weighs it")


LARGEST_RATIO = Metric("policy/ratio_max", Reduction.MAX, "", "largest pi_new / pi_proximal")


CLIPPED_LOW = _mean("policy/clip_fraction_low", "share", "tokens whose ratio is clipped at the lower bound")


CLIPPED_HIGH = _mean("policy/clip_fraction_high", "share", "tokens whose ratio is clipped at the upper bound")


KL_REFERENCE = _mean(
    "policy/kl_reference", "nats", "KL(policy || reference), by the estimator of the loss, with its weight"
)


CORRECTION_WEIGHT = _mean("correction/weight", "", "importance weight of the token")


CORRECTION_SHARE = Metric(
    "correction/effective_share", Reduction.EFFECTIVE_SHARE, "share", "(sum w)^2 / (n sum w^2) of importance weights w"
)


CORRECTION_MASKED = _mean("correction/masked_fraction", "share", "tokens whose importance weight is 0")


MISMATCH_KL = Metric(
    "mismatch/kl",
    Reduction.WEIGHTED,
    "nats",
    "engine against trainer at tokens of the version that is trained: rho - 1 - log rho, rho = pi_proximal / pi_engine",
)


MISMATCH_GAP = Metric(
    "mismatch/log_prob_gap_max", Reduction.MAX, "nats", "largest |log pi_engine - log pi_proximal| at such tokens"
)


STALENESS_KL = Metric(
    "staleness/kl",
    Reduction.WEIGHTED,
    "nats",
    "as mismatch/kl, at tokens of earlier versions: staleness is in it",
)


class PolicyObjective(Objective):
    """Formula: per token l = w * policy_loss(new, log_probs, A) + coefficient * KL(new, ref) - bonus * H(new).

    Of these the weighted sum is taken. H is the entropy of the distribution that the token is a draw of.
    The KL term is not weighted by the correction w, unless `KlTerm` says so: it is a penalty of the new policy at the
    tokens seen.
    Source: Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, equation 3 with the parts' own sources; the entropy bonus:
    Mnih et al. 2016, arXiv:1602.01783, section 4, and Schulman et al. 2017, arXiv:1707.06347, equation 9.
    """

    def __init__(
        self,
        token_loss: PolicyLoss,
        aggregate: Aggregation,
        *,
        kl: KlTerm | None = None,
        correct: Correction | None = None,
        entropy_bonus: float = 0.0,
    ) -> None:
        """`kl` None: no such term; `correct` None: log-probs of the engine give metrics only."""
        self._token_loss = token_loss
        super().__init__(aggregate)
        self._kl = kl
        self._correct = correct
        self._entropy_bonus = entropy_bonus
        self.needs_outputs = frozenset({Output.LOG_PROBS, *((Output.ENTROPY,) if entropy_bonus else ())})
        needs = {Column.ADVANTAGES, Column.ROLLOUT_LOG_PROBS, Column.LOSS_MASKS}
        self.needs_columns = frozenset(needs if kl is None else {*needs, Column.REF_LOG_PROBS})
        self.metrics = (
            ENTROPY,
            APPROXIMATE_KL,
            RATIO,
            LARGEST_RATIO,
            CLIPPED_LOW,
            CLIPPED_HIGH,
            MISMATCH_KL,
            MISMATCH_GAP,
            STALENESS_KL,
            *(() if correct is None else (CORRECTION_WEIGHT, CORRECTION_SHARE, CORRECTION_MASKED)),
            *(() if kl is None else (KL_REFERENCE,)),
        )

    def loss(
        self, outputs: Outputs, columns: Mapping[Column, torch.Tensor], rows: MaskedRows, weights: torch.Tensor
    ) -> LossSums:
        """Without a column of proximal log-probs they are the new ones, without their gradient: no weight has moved."""
        assert outputs.log_probs is not None, "a policy is trained by its log-probs"
        keep = weights > 0

        def unmasked(values: torch.Tensor) -> torch.Tensor:
            """With 0 at masked tokens: a weight of 0 is not enough, since 0 * inf is NaN, in the gradient too."""
            return torch.where(keep, values, 0.0)

        new = unmasked(outputs.log_probs)
        drawn = new.detach()
        proximal = unmasked(columns[Column.LOG_PROBS]) if Column.LOG_PROBS in columns else drawn
        engine = unmasked(columns[Column.ROLLOUT_LOG_PROBS])
        losses = self._token_loss(new, proximal, unmasked(columns[Column.ADVANTAGES]), rows)
        loss = losses.loss
        metrics = {
            ENTROPY.name: MetricValues(-drawn if outputs.entropy is None else unmasked(outputs.entropy.detach())),
            APPROXIMATE_KL.name: MetricValues(k3(proximal, drawn)),
            RATIO.name: MetricValues(losses.ratio),
            LARGEST_RATIO.name: MetricValues(losses.ratio),
            CLIPPED_LOW.name: MetricValues(losses.is_clipped * (losses.ratio < 1.0)),
            CLIPPED_HIGH.name: MetricValues(losses.is_clipped * (losses.ratio > 1.0)),
            **_of_engine(proximal, engine, keep, columns.get(Column.IS_CURRENT)),
        }
        correction: torch.Tensor | float = 1.0
        if self._correct is not None:
            correction = self._correct(proximal, engine, rows)
            loss = loss * correction
            metrics[CORRECTION_WEIGHT.name] = metrics[CORRECTION_SHARE.name] = MetricValues(correction)
            metrics[CORRECTION_MASKED.name] = MetricValues((correction == 0).to(correction.dtype))
        if self._kl is not None:
            kl = self._kl.estimate(new, unmasked(columns[Column.REF_LOG_PROBS]))
            if self._kl.is_weighted:
                kl = kl * ratio_of(new - proximal) * correction
            loss = loss + self._kl.coefficient * kl
            metrics[KL_REFERENCE.name] = MetricValues(kl.detach())
        if self._entropy_bonus:
            loss = loss - self._entropy_bonus * unmasked(outputs.of(Output.ENTROPY))
        loss = unmasked(loss)  # a user's loss may be anything where all that it was given is 0
        return LossSums(loss @ weights.to(loss.dtype), loss.detach(), metrics, losses.metrics)


def _of_engine(
    proximal: torch.Tensor, engine: torch.Tensor, keep: torch.Tensor, is_current: torch.Tensor | None
) -> dict[str, MetricValues]:
    """Where no row says which tokens the trained version made, all count as its own."""
    current = keep if is_current is None else keep & (is_current > 0)
    kl = k3(engine, proximal)
    return {
        MISMATCH_KL.name: MetricValues(kl, current.to(kl.dtype)),
        MISMATCH_GAP.name: MetricValues(torch.where(current, (engine - proximal).abs(), -torch.inf)),
        STALENESS_KL.name: MetricValues(kl, (keep & ~current).to(kl.dtype)),
    }
