"""Advantages and loss of a job (`spec.algorithm`): fields and rules. Anyone may import it. Computes nothing."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints
from pydantic.alias_generators import to_snake

from rljob_api.rule import Derived, Rule, RuledModel
from rljob_api.spec.advantages import (
    ADVANTAGES,
    OF_A_TEACHER,
    OWN_ADVANTAGE,
    Advantage,
    AdvantageTraits,
    GaeSpec,
    Statistics,
    Whitening,
)


class Loss(StrEnum):
    """Policy losses that come with the product."""

    PPO_CLIP = "PpoClip"
    GSPO = "Gspo"
    CISPO = "Cispo"
    SAPO = "Sapo"
    REINFORCE = "Reinforce"


DEFAULT_LOSS = Loss.PPO_CLIP


CLIP_READ_BY: Mapping[str, frozenset[Loss]] = {
    "low": frozenset({Loss.PPO_CLIP, Loss.GSPO}),
    "high": frozenset({Loss.PPO_CLIP, Loss.GSPO, Loss.CISPO}),
    "dual": frozenset({Loss.PPO_CLIP}),
    "positiveTemperature": frozenset({Loss.SAPO}),
    "negativeTemperature": frozenset({Loss.SAPO}),
}
"""Field of `clip` -> the losses that read it. A function of the user's reads none: it has bounds of its own."""


CLIP: tuple[Rule, ...] = (
    Rule(
        field="dual",
        holds=lambda clip: clip.dual is None or clip.high is None or clip.dual > 1 + clip.high,
        sentence="{dual} is not above 1 + high, where the clip bounds every loss already. Give more, or leave it out.",
        cel="!has(self.dual) || !has(self.high) || self.dual > 1.0 + self.high",
    ),
)


KL: tuple[Rule, ...] = (
    Rule(
        field="estimator",
        holds=lambda kl: kl.estimator != "K1" or not kl.is_in_loss or bool(kl.weighted),
        sentence="K1 pulls nowhere: the mean of its gradient is 0. Set estimator to K3 or K2, or weighted to true.",
        cel="!has(self.estimator) || self.estimator != 'K1' || !has(self.coefficient) || self.coefficient == 0.0 || "
        "(has(self.weighted) && self.weighted) || (has(self.placement) && self.placement == 'Reward')",
    ),
    Rule(
        field="weighted",
        holds=lambda kl: not kl.weighted or kl.placement is not KlPlacement.REWARD,
        sentence="true is for a term of the loss, but placement is Reward. Set placement to Loss or remove weighted.",
        cel="!has(self.weighted) || !self.weighted || !has(self.placement) || self.placement != 'Reward'",
    ),
    Rule(
        field="weighted",
        holds=lambda kl: not kl.weighted or kl.estimator != "K2",
        sentence="true gives K1 and K3 the gradient of the KL, and K2 another one. Set estimator to K3, or remove "
        "weighted.",
        cel="!has(self.weighted) || !self.weighted || self.estimator != 'K2'",
    ),
)


CORRECTION: tuple[Rule, ...] = (
    Rule(
        field="floor",
        holds=lambda correction: correction.floor is None or correction.kind == "IcePop",
        sentence="{floor} is the lower bound of IcePop, but kind is not IcePop. Set kind to IcePop or remove floor.",
        cel="!has(self.floor) || (has(self.kind) && self.kind == 'IcePop')",
    ),
    Rule(
        field="floor",
        holds=lambda correction: (
            correction.floor is None or correction.cap is None or correction.floor < correction.cap
        ),
        sentence="{floor} is not below cap, so that no token is left. Give less than cap.",
        cel="!has(self.floor) || !has(self.cap) || self.floor < self.cap",
    ),
    Rule(
        field="cap",
        holds=lambda correction: correction.cap is None or correction.kind != "Untruncated",
        sentence="{cap} bounds weights, and kind Untruncated does not. Set kind to Tis or IcePop, or remove cap.",
        cel="!has(self.cap) || self.kind != 'Untruncated'",
    ),
    Rule(
        field="level",
        holds=lambda correction: correction.level is None or correction.kind in ("Tis", "IcePop", "Untruncated"),
        sentence="{level} is of the weights that Tis, IcePop and Untruncated give, but kind is {kind}. Set kind to one "
        "of them or remove level.",
        cel="!has(self.level) || self.kind in ['Tis', 'IcePop', 'Untruncated']",
    ),
)


RATIO_MASK: tuple[Rule, ...] = (
    Rule(
        field="cap",
        holds=lambda mask: mask.floor is not None or mask.cap is not None,
        sentence="neither floor nor cap is given, so that every token stays. Give one of them, or both.",
        cel="has(self.floor) || has(self.cap)",
    ),
)


def _is_read(field: str) -> Rule:
    """A bound of `clip` that the loss does not look at would be believed to hold."""
    losses = sorted(CLIP_READ_BY[field])
    name = f"has(self.loss) ? self.loss : '{DEFAULT_LOSS}'"
    return Rule(
        field=f"clip.{field}",
        holds=lambda algorithm: getattr(algorithm.clip, to_snake(field)) is None or _loss(algorithm) in losses,
        sentence=f"{{clip.{field}}} is not read by the loss {{lossInUse}}. Remove it, or set loss to "
        f"{' or '.join(losses)}.",
        cel=f"!has(self.clip.{field}) || ({name}) in {[loss.value for loss in losses]}",
        derived={"lossInUse": Derived(_loss, name)},
    )


def _loss(algorithm: "AlgorithmSpec") -> str:
    return algorithm.loss or DEFAULT_LOSS


ALGORITHM: tuple[Rule, ...] = (
    *(_is_read(field) for field in CLIP_READ_BY),
    Rule(
        field="constantLength",
        holds=lambda algorithm: algorithm.constant_length is None or algorithm.loss_aggregation == "Constant",
        sentence="{constantLength} is what lossAggregation Constant divides by, but lossAggregation is "
        "{lossAggregation}. Set that to Constant or remove constantLength.",
        cel="!has(self.constantLength) || self.lossAggregation == 'Constant'",
    ),
    Rule(
        field="gae",
        holds=lambda algorithm: algorithm.gae is None or algorithm.advantage == "Gae",
        sentence="is for the advantage Gae, but advantage is {advantage}. Set advantage to Gae or remove gae.",
        cel="!has(self.gae) || self.advantage == 'Gae'",
    ),
    Rule(
        field="kl.placement",
        holds=lambda algorithm: not algorithm.advantage_traits.needs_reference or not algorithm.kl.is_in_reward,
        sentence="{kl.placement} takes the distance to the teacher off rewards, which the advantage {advantage} does "
        "not read: it is that distance already. Set placement to Loss, or choose another advantage.",
        cel=f"!(self.advantage in {list(OF_A_TEACHER)}) || !has(self.kl.placement) || self.kl.placement != 'Reward' || "
        "self.kl.coefficient == 0.0",
    ),
    Rule(
        field="noVariance",
        holds=lambda algorithm: not algorithm.advantage_traits.needs_reference or algorithm.no_variance == "Keep",
        sentence="{noVariance} goes by rewards, which the advantage {advantage} does not read: what a teacher says of "
        "a sample would be left out. Set noVariance to Keep, or choose another advantage.",
        cel=f"!(self.advantage in {list(OF_A_TEACHER)}) || !has(self.noVariance) || self.noVariance == 'Keep'",
    ),
    Rule(
        field="correction.kind",
        holds=lambda algorithm: algorithm.proximal != "Rollout" or algorithm.correction.kind == "None",
        sentence="{correction.kind} compares proximal log-probs with the engine's, which are one with proximal "
        "Rollout: every weight would be 1. Set kind to None, or proximal to Actor or Recompute.",
        cel="!has(self.proximal) || self.proximal != 'Rollout' || self.correction.kind == 'None'",
    ),
    Rule(
        field="correction.mask",
        holds=lambda algorithm: algorithm.proximal != "Rollout" or algorithm.correction.mask is None,
        sentence="compares proximal log-probs with the engine's, which are one with proximal Rollout: nothing would be "
        "masked. Remove it, or set proximal to Actor or Recompute.",
        cel="!has(self.proximal) || self.proximal != 'Rollout' || !has(self.correction.mask)",
    ),
)


def _names(kinds: type[StrEnum]) -> StringConstraints:
    """One of these names, or a function of the user's as `package.module:function`."""
    own = r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*"
    return StringConstraints(pattern=f"^({'|'.join(kinds)}|{own})$", max_length=256)


class ClipSpec(RuledModel):
    """Bounds of the policy ratio. Each loss reads some of these; the others are refused."""

    rules = CLIP

    low: float | None = Field(default=None, gt=0, lt=1)
    """Distance of the lower bound from 1, with PpoClip and Gspo. Null: 0.2, or 0.0003 with Gspo, whose ratio is a
    mean."""
    high: float | None = Field(default=None, gt=0, le=10)
    """Distance of the upper bound from 1 (larger than `low`: clip-higher), with PpoClip, Gspo and Cispo. Null: 0.28, or
    0.0004 with Gspo, or 4 with Cispo, whose bound takes no gradient away."""
    dual: float | None = Field(default=None, gt=1, le=1000)
    """c: a token with a negative advantage A has at most the loss -A c, however far its ratio is (dual clip; 3 is
    usual), with PpoClip. Null: no such bound."""
    positive_temperature: float | None = Field(default=None, gt=0, le=1000)
    """How fast the gradient of a token with an advantage above 0 fades as its ratio leaves 1, with Sapo. Null: 1."""
    negative_temperature: float | None = Field(default=None, gt=0, le=1000)
    """The same for the other tokens. Null: 1.05."""


class KlEstimator(StrEnum):
    """Estimators of KL(policy || reference), Schulman 2020."""

    K1 = "K1"
    K2 = "K2"
    K3 = "K3"


class KlPlacement(StrEnum):
    """Where the pull towards the reference is felt."""

    LOSS = "Loss"
    REWARD = "Reward"


class KlSpec(RuledModel):
    """Pull towards the reference, in the loss or in the reward. A coefficient above 0 needs the reference role."""

    rules = KL

    coefficient: float = Field(default=0.0, ge=0, le=100)
    """Weight of the term; 0 leaves it out."""
    placement: KlPlacement | None = None
    """Loss: the estimate at each token, under the weights that are trained, is a term of its loss. Reward: coefficient
    times the estimate under the policy before training (the role actorFwd's log-probs, else the engine's) is taken off
    the reward of each token that the model drew, before advantages are estimated; where these are of samples, off the
    sample's. There K1 is usual. Null: Loss."""
    estimator: KlEstimator = KlEstimator.K3
    """K2: half the square of the log ratio. K3: unbiased and never negative. K1, the log ratio itself, has a gradient
    of mean 0 and is refused in a loss that is not weighted."""
    weighted: bool | None = None
    """Whether the term of a token is multiplied by the ratio of the new policy and that which drew it, as far as the
    correction goes, so that K3 (and K1) have the gradient of the KL (DeepSeek-V3.2). Null: no."""

    @property
    def is_in_loss(self) -> bool:
        """Whether the loss has a term of it."""
        return self.coefficient > 0 and self.placement is not KlPlacement.REWARD

    @property
    def is_in_reward(self) -> bool:
        """Whether rewards are lessened by it."""
        return self.coefficient > 0 and self.placement is KlPlacement.REWARD


class Correction(StrEnum):
    """Ways to correct for rollout log-probs that differ from the trainer's."""

    NONE = "None"
    TIS = "Tis"
    ICE_POP = "IcePop"
    UNTRUNCATED = "Untruncated"


class RatioLevel(StrEnum):
    """The unit of a ratio: a token, or all tokens of a response that are learnt from."""

    TOKEN = "Token"  # noqa: S105 - a token of text, not a secret
    SEQUENCE = "Sequence"
    GEOMETRIC_MEAN = "GeometricMean"


class RatioMaskSpec(RuledModel):
    """Tokens that are too far from the engine's policy have no policy loss, whatever their weight."""

    rules = RATIO_MASK

    level: RatioLevel | None = None
    """Token: by each token's own ratio. Sequence: responses, by the product over their tokens that are learnt
    from. GeometricMean: by its root, which does not grow with the length: bounds lie within some thousandths of 1.
    Null: Token."""
    floor: float | None = Field(default=None, gt=0, lt=1)
    """Smallest ratio, proximal over engine, that stays. Null: no such bound."""
    cap: float | None = Field(default=None, gt=1, le=1000)
    """Largest ratio that stays. Null: no such bound."""


class CorrectionSpec(RuledModel):
    """Importance correction for stale or mismatched log-probs, by the ratio of proximal and engine's policy."""

    rules = CORRECTION

    kind: Annotated[str, _names(Correction)] = Correction.TIS
    """Tis: truncated importance sampling, weights up to `cap`. IcePop: tokens whose weight is not between `floor` and
    `cap` have no gradient. Untruncated: the ratio itself (decoupled PPO). None: weights of 1. Or
    `package.module:function` with the signature of `rljob_workers.algorithms.corrections.Correction`."""
    cap: float | None = Field(default=None, gt=0, le=1000)
    """Largest importance weight, with Tis and IcePop. Null: 2, or 5 with IcePop."""
    floor: float | None = Field(default=None, ge=0, lt=1)
    """Smallest importance weight, with IcePop. Null: 0.5."""
    level: RatioLevel | None = None
    """The unit of which the weight is the ratio. Token: each token. Sequence: the response, the product over its tokens
    that are learnt from. GeometricMean: its root. Null: Token."""
    mask: RatioMaskSpec | None = None
    """Tokens or responses that are left out of the policy loss by a ratio, beside the weights. Null: none."""


class LossAggregation(StrEnum):
    """Over what the loss is averaged: all tokens of the global batch, or samples."""

    TOKEN_MEAN = "TokenMean"  # noqa: S105 - a token of text, not a secret
    SEQUENCE_MEAN = "SequenceMean"
    SEQUENCE_SUM = "SequenceSum"
    CONSTANT = "Constant"


class Truncated(StrEnum):
    """Treatment of samples that were cut off at the longest response."""

    KEEP = "Keep"
    MASK = "Mask"


class NoVariance(StrEnum):
    """Treatment of groups whose rewards are all equal."""

    KEEP = "Keep"
    LEAVE_OUT = "LeaveOut"


class ProximalPolicy(StrEnum):
    """The policy that the ratio of the loss is measured against."""

    RECOMPUTE = "Recompute"
    ACTOR = "Actor"
    ROLLOUT = "Rollout"


class AlgorithmSpec(RuledModel):
    """A policy gradient over groups of samples."""

    rules = ALGORITHM

    advantage: Annotated[str, _names(Advantage)] = Advantage.GRPO
    """Grpo: (reward - mean of its group) / standard deviation of its group. DrGrpo: without the deviation. Rloo: reward
    - mean of the others of its group. ReMax: reward - reward of a greedy answer to the same prompt, which is drawn and
    scored beside its samples. ReinforcePlusPlus: what comes from each token on, with mean 0 and variance 1 over
    the tokens of the whole rollout; ReinforcePlusPlusBaseline: reward - mean of its group, so too. Gae: each token
    against a critic's values, over the tokens that the model drew. Distillation: log-prob of the teacher
    (roles.reference.modelPath) - log-prob of the policy, of each token; rewards are not read. Or
    `package.module:function` with the signature of `rljob_workers.algorithms.advantages.estimator.RowEstimator`."""
    gae: GaeSpec | None = None
    """How Gae weighs what comes later. Null: its defaults, where advantage is Gae."""
    loss: Annotated[str, _names(Loss)] | None = None
    """PpoClip: the clipped ratio of each token. Gspo: that of each response, for which lossAggregation SequenceMean is
    meant. Cispo: the bounded ratio is a weight, and every token keeps a gradient. Sapo: a gate that closes smoothly in
    the place of the clip. Reinforce: the plain policy gradient, without a ratio. Or `package.module:function` with the
    signature of `rljob_workers.algorithms.losses.PolicyLoss`. Null: PpoClip."""
    clip: ClipSpec = ClipSpec()
    """How far the policy may move in one step."""
    kl: KlSpec = KlSpec()
    """Pull towards the reference model."""
    entropy_bonus: float | None = Field(default=None, ge=0, le=10)
    """Weight of the policy's entropy at each token, in nats, which the loss is lowered by: holds a policy open that
    would settle on one answer. Null: 0. With the backend Flat, steps take longer with it."""
    correction: CorrectionSpec = CorrectionSpec()
    """Corrects for samples that the trained policy did not make."""
    proximal: ProximalPolicy | None = None
    """Log-probs that the ratio of the loss is measured against. Recompute: version r's, by the role actorFwd. Actor:
    the same, by the actor itself: in the pass that trains where a rollout is one optimizer step, else of the whole
    rollout before the first. Rollout: the engine's, as they came, so that nothing is computed again and the ratio
    covers staleness and mismatch too (bypass mode). Null: Recompute where there is an actorFwd, else Actor."""
    loss_aggregation: Annotated[str, _names(LossAggregation)] = LossAggregation.TOKEN_MEAN
    """Over what the loss is averaged. TokenMean: all tokens of the global batch. SequenceMean: samples, each by its
    tokens' mean. SequenceSum: samples, each by its tokens' sum. Constant: the same, divided by constantLength (Dr.
    GRPO). Or `package.module:function` with the signature of `rljob_workers.algorithms.aggregation.Aggregation`."""
    constant_length: int | None = Field(default=None, ge=1, le=16777216)
    """Tokens, with lossAggregation Constant: what a sample's sum is divided by, whatever its length. Null:
    rollout.sampling.maxNewTokens."""
    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A folder that is searched first for the modules of functions of yours; relative to the manifest."""
    truncated: Truncated = Truncated.KEEP
    """Samples that were cut off at maxNewTokens or at the model's last position. Keep: they are trained on like others.
    Mask: the policy's loss leaves them out (overlong filtering, DAPO), while their rewards still count in mean and
    standard deviation of their group, and a critic learns from them."""
    no_variance: NoVariance = NoVariance.KEEP
    """Groups whose valid samples all have one reward, so that Grpo gives them no advantage. Keep: they count in the
    loss like others, and make it smaller where it is a mean. LeaveOut: they are masked, so that neither the loss's
    normaliser, nor its KL term, nor its metrics know them. The metric groups/no_variance counts them either way. With
    ReMax the greedy answer is one more of the group: where it has another reward, the group is not left out."""
    sample_filter: (
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
        | None
    ) = None
    """`package.module:function` with the signature of `rljob_workers.training.sample_filter.TrainsOn`: it sees each
    sample as the step that would train on it, with its advantages and staleness, and says whether it does. The policy's
    loss leaves out what it does not; a critic trains on it. The metric samples/filtered_share counts it. Null: all."""

    @property
    def advantage_traits(self) -> AdvantageTraits:
        """The estimator's traits, as this job uses it."""
        traits = ADVANTAGES.get(self.advantage, OWN_ADVANTAGE)
        if self.advantage == Advantage.GAE and (self.gae or GaeSpec()).whiten is Whitening.NONE:
            return replace(traits, statistics=Statistics.ROW)
        return traits
