"""Which groups are drawn anew before training (`spec.rollout.dynamicSampling`): fields, and rules with the algorithm.

Anyone may import it. Loads no filter.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from rljob_api.base import ApiModel
from rljob_api.rule import Rule
from rljob_api.spec.advantages import WITHOUT_GROUPS


class GroupFilter(StrEnum):
    """Filters that come with the product."""

    NO_VARIANCE = "NoVariance"


class DynamicSamplingSpec(ApiModel):
    """Groups that a filter refuses are drawn anew, with the next prompt of the data (DAPO, section 3.2)."""

    filter: Annotated[
        str,
        StringConstraints(
            pattern=f"^({'|'.join(GroupFilter)}|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*)$", max_length=256
        ),
    ] = GroupFilter.NO_VARIANCE
    """NoVariance refuses groups whose valid samples all have one reward, as algorithm.noVariance finds them. Or
    `package.module:function` with the signature of `rljob_workers.rollout.dynamic_sampling.KeepsGroup`, which gives
    True for a group that is to be trained on."""
    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A folder that is searched first for the module of a filter of yours; relative to the manifest."""
    max_attempts: int = Field(default=8, ge=2, le=1000)
    """Draws of one group that the filter sees: the last of them is trained on whatever the filter says of it, and
    counted. Draws that fail have a limit of their own, rollout.maxAttempts."""


DYNAMIC_SAMPLING: tuple[Rule, ...] = (
    Rule(
        field="rollout.dynamicSampling.filter",
        holds=lambda job: (
            job.rollout.dynamic_sampling is None
            or job.rollout.dynamic_sampling.filter != GroupFilter.NO_VARIANCE
            or job.algorithm.advantage not in WITHOUT_GROUPS
        ),
        sentence="{rollout.dynamicSampling.filter} refuses groups of which nothing is learnt where samples are "
        "measured against their group, and algorithm.advantage {algorithm.advantage} does not do that. Give a function "
        "of yours as package.module:function, or choose another advantage, such as Grpo.",
        cel="!has(self.rollout.dynamicSampling) || self.rollout.dynamicSampling.filter != 'NoVariance' || "
        f"!(self.algorithm.advantage in {list(WITHOUT_GROUPS)})",
    ),
)
