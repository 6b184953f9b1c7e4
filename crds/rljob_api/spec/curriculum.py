"""Which row of the data comes next (`spec.rollout.curriculum`): fields, and rules with the data. Anyone may import it.

Loads no function.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from rljob_api.base import ApiModel
from rljob_api.rule import Rule


class CurriculumSpec(ApiModel):
    """A function of yours chooses the row of the data for each draw, by what samples of each row have earned so far."""

    function: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", max_length=256)
    ]
    """`package.module:function` with the signature of `rljob_workers.data.curriculum.ChoosesRows`. It is called once
    for as many draws as a rollout has prompts; a draw for which a row was chosen keeps it."""
    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A folder that is searched first for its module; relative to the manifest."""
    pass_reward: float = Field(default=1.0, ge=-1e9, le=1e9)
    """A sample passes with this reward or more. Samples of before a change stay counted as they were."""


CURRICULUM: tuple[Rule, ...] = (
    Rule(
        field="data.sources",
        holds=lambda job: job.rollout.curriculum is None or all(each.weight == 1 for each in job.data.sources or ()),
        sentence="have weights, and rollout.curriculum chooses every row, whatever its source. Remove the weights, or "
        "the curriculum.",
        cel="!has(self.rollout.curriculum) || !has(self.data.sources) || "
        "self.data.sources.all(each, !has(each.weight) || each.weight == 1.0)",
    ),
)
