"""The loss of policy optimisation, composed of clip, correction, KL term and aggregation.

Returns sums and a normaliser, never means: see `aggregation`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from rljob_workers.algorithms.aggregation import TokenWeights
from rljob_workers.algorithms.ppo_clip import ppo_clip
from rljob_workers.algorithms.tis import truncated_weights

Aggregate = Callable[[torch.Tensor, torch.Tensor], TokenWeights]
KlEstimate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_ALWAYS = ("clip_fraction", "ratio", "entropy", "rollout_kl")


@dataclass(frozen=True, slots=True)
class PolicyLossConfig:
    """What the loss is made of."""

    clip_low: float
    clip_high: float
    aggregate: Aggregate
    """`aggregation.token_mean` or `sequence_mean`."""
    kl_coefficient: float
    """0: no KL term, and `ref_log_probs` is not read."""
    kl_estimate: KlEstimate
    """`kl.k1`, `k2` or `k3`."""
    tis_cap: float | None
    """None: no correction, and `rollout_log_probs` only gives a metric."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics of `LossSums`, in a fixed order: ranks add them up by place."""
        optional = (("tis_weight", self.tis_cap is not None), ("kl", self.kl_coefficient > 0))
        return (*_ALWAYS, *(name for name, is_there in optional if is_there))


@dataclass(frozen=True, slots=True, eq=False)
class TokenInputs:
    """What is known of the response tokens before the forward pass, rows back to back, all [tokens]."""

    log_probs: torch.Tensor
    rollout_log_probs: torch.Tensor
    advantages: torch.Tensor
    loss_masks: torch.Tensor
    ref_log_probs: torch.Tensor | None
    response_lengths: torch.Tensor
    """[rows] int64."""


@dataclass(frozen=True, slots=True, eq=False)
class LossSums:
    """Sums over the tokens of one micro-batch. Only `loss` carries a gradient."""

    loss: torch.Tensor
    normaliser: torch.Tensor
    token_losses: torch.Tensor
    """[tokens], without their weights; 0 at masked tokens."""
    metrics: Mapping[str, torch.Tensor]
    """Weighted like the loss: divided by the global normaliser they are means."""


def policy_loss(
    new_log_probs: torch.Tensor, tokens: TokenInputs, config: PolicyLossConfig, entropy: torch.Tensor | None = None
) -> LossSums:
    """The policy-gradient loss with its KL term.

    `entropy` [tokens] is that of the distribution at each token, where a trainer knows it; else the metric is made of
    what was drawn, -log p, whose mean is the entropy only for tokens of this very policy.

    Formula: per token l = w_tis * ppo_clip(new, log_probs, A) + kl_coefficient * KL(new, ref); then the weighted sum
    of the aggregation. The KL term is not weighted by TIS: it is a penalty of the new policy at the tokens seen.
    Shapes: new_log_probs [tokens], requires grad where the caller trains -> scalars.
    Source: Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, equation 3 with the parts' own sources.
    """
    weighting = config.aggregate(tokens.loss_masks, tokens.response_lengths)
    weights = weighting.weights.to(new_log_probs.dtype)
    keep = weights > 0
    new_log_probs, tokens = _without_masked(new_log_probs, tokens, keep)
    entropy = -new_log_probs.detach() if entropy is None else torch.where(keep, entropy.detach(), 0.0)
    clipped = ppo_clip(new_log_probs, tokens.log_probs, tokens.advantages, low=config.clip_low, high=config.clip_high)
    loss = clipped.loss
    metrics = {
        "clip_fraction": clipped.is_clipped,
        "ratio": clipped.ratio,
        "entropy": entropy,
        "rollout_kl": tokens.rollout_log_probs - tokens.log_probs,
    }
    if config.tis_cap is not None:
        tis = truncated_weights(tokens.log_probs, tokens.rollout_log_probs, cap=config.tis_cap)
        loss = loss * tis
        metrics["tis_weight"] = tis
    if config.kl_coefficient > 0:
        if tokens.ref_log_probs is None:
            raise ValueError(
                "ref_log_probs: missing, but algorithm.kl.coefficient is above 0. Give the job the reference role."
            )
        kl = config.kl_estimate(new_log_probs, tokens.ref_log_probs)
        loss = loss + config.kl_coefficient * kl
        metrics["kl"] = kl.detach()
    return LossSums(
        loss=loss @ weights,
        normaliser=weighting.normaliser,
        token_losses=loss.detach(),
        metrics={name: value @ weights for name, value in metrics.items()},
    )


def _without_masked(
    new_log_probs: torch.Tensor, tokens: TokenInputs, keep: torch.Tensor
) -> tuple[torch.Tensor, TokenInputs]:
    """The inputs with 0 at masked tokens: a weight of 0 is not enough, since 0 * inf is NaN, in the gradient too."""

    def kept(values: torch.Tensor) -> torch.Tensor:
        return torch.where(keep, values, 0.0)

    return kept(new_log_probs), replace(
        tokens,
        log_probs=kept(tokens.log_probs),
        rollout_log_probs=kept(tokens.rollout_log_probs),
        advantages=kept(tokens.advantages),
        ref_log_probs=None if tokens.ref_log_probs is None else kept(tokens.ref_log_probs),
    )
