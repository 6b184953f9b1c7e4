"""Groups that are interrupted and carried on (`spec.rollout.partial`): fields, and rules with the rest of the job.

Anyone may import it.
"""

from __future__ import annotations

from pydantic import Field

from rljob_api.base import ApiModel
from rljob_api.rule import Rule


class PartialSpec(ApiModel):
    """Groups that are interrupted keep what was generated of their samples, and go on behind it.

    With order Swap groups also go on from rollout to rollout until they are finished: tokens that are then older than
    maxStaleness are not learnt from.
    """

    save_seconds: int = Field(default=5, ge=1, le=3600)
    """How often a rollout rank saves what has grown: of a rank that is killed so much is lost at most."""
    max_tokens: int | None = Field(default=None, ge=1, le=1048576)
    """Most tokens of a sample that are carried; what is beyond them is generated again. Null:
    sampling.maxNewTokens, which is all of it."""


PARTIAL_ROLLOUTS: tuple[Rule, ...] = (
    Rule(
        field="rollout.overSampling",
        holds=lambda job: job.rollout.over_sampling is None or job.rollout.carries,
        sentence="{rollout.overSampling} draws groups that a later rollout goes on with, which needs order Swap and "
        "partial. Set rollout.order to Swap and give rollout.partial, or remove rollout.overSampling.",
        cel="!has(self.rollout.overSampling) || (has(self.rollout.partial) && has(self.rollout.order) && "
        "self.rollout.order == 'Swap')",
    ),
    Rule(
        field="rollout.partial",
        holds=lambda job: job.rollout.partial is None or job.rollout.function is None,
        sentence="carries tokens, and what a function (rollout.function) has done until it is interrupted cannot be "
        "carried. Remove rollout.partial or rollout.function.",
        cel="!has(self.rollout.partial) || !has(self.rollout.function)",
    ),
    Rule(
        field="rollout.partial",
        holds=lambda job: job.rollout.partial is None or not job.rollout.sampling.stop,
        sentence="goes on behind tokens that were drawn before, and an engine would not see a text of sampling.stop "
        "that begins in them. Give tokens in sampling.stopTokenIds, or remove rollout.partial.",
        cel="!has(self.rollout.partial) || !has(self.rollout.sampling) || !has(self.rollout.sampling.stop) || "
        "self.rollout.sampling.stop.size() == 0",
    ),
)
