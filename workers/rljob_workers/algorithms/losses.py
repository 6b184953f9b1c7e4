"""The loss of policy optimisation: clip, truncated importance sampling, KL estimators, masks and aggregation.

Pure torch: formula, shapes and source stand in each docstring. Called by the trainers; knows no model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True, eq=False)
class ClippedLoss:
    """Per token, all [tokens]. Only `loss` carries a gradient."""

    loss: torch.Tensor
    ratio: torch.Tensor
    is_clipped: torch.Tensor
    """1.0 where the clipped branch is the larger loss, so that the token has no gradient."""


def ppo_clip(
    new_log_probs: torch.Tensor, log_probs: torch.Tensor, advantages: torch.Tensor, *, low: float, high: float
) -> ClippedLoss:
    """PPO's pessimistic clip with separate bounds.

    Formula: ratio = exp(new - old); loss = max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), where old is the proximal
    policy: version r for rows of `train_r`, not the behaviour policy (that difference is the correction's).
    Shapes: all [tokens] -> [tokens].
    Source: Schulman et al. 2017, arXiv:1707.06347, equation 7; separate upper bound: Yu et al. 2025, DAPO,
    arXiv:2503.14476, section 3.1; proximal against behaviour policy: Hilton et al. 2021, arXiv:2110.00641.
    """
    ratio = torch.exp(new_log_probs - log_probs)
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    return ClippedLoss(
        loss=torch.maximum(plain, clipped),
        ratio=ratio.detach(),
        is_clipped=(clipped.detach() > plain.detach()).to(ratio.dtype),
    )


def truncated_weights(log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, *, cap: float) -> torch.Tensor:
    """Weights that multiply the policy-gradient loss of each token; never a gradient through them.

    Formula: w = min(exp(log_probs - rollout_log_probs), cap). `log_probs` are the proximal policy's (the trainer's
    arithmetic, version r for rows of `train_r`), `rollout_log_probs` the behaviour policy's (the engine's arithmetic,
    whatever versions drew the tokens). So the weight covers staleness and the mismatch of engine and trainer, and the
    clipped ratio new / log_probs covers the optimizer steps within the rollout.
    Shapes: [tokens] -> [tokens].
    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
    https://fengyao.notion.site/off-policy-rl; truncation: Ionides 2008, JCGS 17(2).
    """
    return torch.exp(log_probs - rollout_log_probs).clamp(max=cap).detach()


def k1(log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """K1 = d: unbiased, high variance, may be negative. Its own gradient has mean 0, so it is of use as a metric."""
    return log_probs - ref_log_probs


def k2(log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """K2 = d^2 / 2: biased, low variance, never negative; the gradient of its mean is that of the KL."""
    return (log_probs - ref_log_probs).square() / 2


def k3(log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """K3 = exp(-d) - 1 + d: unbiased, low variance, never negative."""
    difference = ref_log_probs - log_probs
    return torch.expm1(difference) - difference


def masks_of_rows(loss_masks: torch.Tensor, response_lengths: torch.Tensor, learnt: torch.Tensor) -> torch.Tensor:
    """The masks, with 0 at every token of a row that is not learnt from.

    Sums, counts and means that go by the result are those of a batch without these rows.
    Shapes: loss_masks [tokens] uint8, response_lengths [rows] int64, learnt [rows] bool -> [tokens] uint8.
    """
    return loss_masks * learnt.repeat_interleave(response_lengths)


Aggregate = Callable[[torch.Tensor, torch.Tensor], TokenWeights]


KlEstimate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


_ALWAYS = ("clip_fraction", "ratio", "entropy", "rollout_kl")


@dataclass(frozen=True, slots=True)
class PolicyLossConfig:
    """What the loss is made of."""

    clip_low: float
    clip_high: float
    aggregate: Aggregate
    """`token_mean` or `sequence_mean`."""
    kl_coefficient: float
    """0: no KL term, and `ref_log_probs` is not read."""
    kl_estimate: KlEstimate
    """`k1`, `k2` or `k3`."""
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

    def unmasked(values: torch.Tensor) -> torch.Tensor:
        return torch.where(keep, values, 0.0)

    return unmasked(new_log_probs), replace(
        tokens,
        log_probs=unmasked(tokens.log_probs),
        rollout_log_probs=unmasked(tokens.rollout_log_probs),
        advantages=unmasked(tokens.advantages),
        ref_log_probs=None if tokens.ref_log_probs is None else unmasked(tokens.ref_log_probs),
    )
