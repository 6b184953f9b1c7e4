"""Evaluation during training (`spec.evaluation`): fields and rules. Anyone may import it. Reads no file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from rljob_api.base import ApiModel
from rljob_api.rule import Rule, RuledModel
from rljob_api.spec.data import DataSpec
from rljob_api.spec.rollout import SamplingSpec

EVALUATION: tuple[Rule, ...] = (
    Rule(
        field="sets",
        holds=lambda evaluation: len({each.name for each in evaluation.sets}) == len(evaluation.sets),
        sentence="two of them have the same name, which their metrics go by. Give each a name of its own.",
        cel="self.sets.all(one, self.sets.exists_one(other, other.name == one.name))",
    ),
    Rule(
        field="sets",
        holds=lambda evaluation: all(each.data.sources is None for each in evaluation.sets),
        sentence="have one with data.sources, which are mixed by weights, and a set has each of its prompts once. Give "
        "each file a set of its own, in data.prompts.",
        cel="self.sets.all(each, !has(each.data.sources))",
    ),
)


class EvaluationSamplingSpec(SamplingSpec):
    """As rollout.sampling, or greedily."""

    temperature: float = Field(default=1.0, ge=0, le=100)
    """Logits are divided by it before a token is drawn. 0: the likeliest token each time."""


class EvaluationSetSpec(ApiModel):
    """Prompts that are answered and scored apart from training."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$", max_length=64)]
    """Its metrics are `eval/NAME/...`."""
    data: DataSpec
    """The prompts: all of them, each once. The job's reward scores the answers."""
    sampling: EvaluationSamplingSpec | None = None
    """How tokens are drawn. Null: as rollout.sampling says."""
    samples_per_prompt: int = Field(default=1, ge=1, le=4096)
    """k of mean@k, and the largest k of pass@k."""
    pass_reward: float = Field(default=1.0, ge=-1e9, le=1e9)
    """A sample passes with this reward or more."""


class EvaluationSpec(RuledModel):
    """Which versions are evaluated, and on what."""

    rules = EVALUATION

    sets: list[EvaluationSetSpec] = Field(min_length=1, max_length=16)
    """What each evaluation consists of."""
    every_steps: int = Field(ge=1, le=10_000_000)
    """Versions that are multiples of this are evaluated, and the last one."""
    at_start: bool = False
    """Whether version 0 is evaluated, too."""
    engine_share: float = Field(default=0.5, gt=0, le=1)
    """Of the samples that an engine has in flight, the largest part that an evaluation takes, and at least one, while
    rollouts have something to generate. While they have nothing, it takes what is free."""

    def is_due(self, version: int, num_rollouts: int) -> bool:
        """Whether a version of a job with so many rollouts is evaluated."""
        return self.at_start if version == 0 else version % self.every_steps == 0 or version == num_rollouts
