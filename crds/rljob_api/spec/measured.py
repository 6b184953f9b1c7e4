"""What a job does by the values of a metric: end (`spec.stopWhen`), keep a checkpoint (`spec.checkpoint.keepBest`).

Fields and rules. Anyone may import it. What follows from values is decided in the coordinator
(`rljob_workers.dcs.coordinator.stop_condition`, `best_checkpoint`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, StringConstraints

from rljob_api.base import ApiModel
from rljob_api.metric_names import (
    EVALUATION_PREFIX,
    OF_EVALUATIONS,
    OF_REPORTS,
    OF_STEPS,
    OF_USERS,
    is_of_evaluations,
    is_of_set,
    is_of_steps,
)
from rljob_api.rule import Rule, RuledModel

if TYPE_CHECKING:
    from collections.abc import Callable

MetricName = Annotated[str, StringConstraints(min_length=1, max_length=256)]


STOP_WHEN: tuple[Rule, ...] = (
    Rule(
        field="above",
        holds=lambda stop: (stop.above is None) != (stop.below is None),
        sentence="exactly one of above and below must be given. Give the bound that the metric must pass.",
        cel="has(self.above) != has(self.below)",
    ),
)


class StopWhenSpec(RuledModel):
    """When a job has reached what it is for, before its last rollout."""

    rules = STOP_WHEN

    metric: MetricName
    """A step's metric, by its name in metrics.jsonl (`reward`, `policy/entropy` ...), or an evaluation's
    (`eval/SET/mean@8` ...)."""
    above: float | None = Field(default=None, ge=-1e30, le=1e30)
    """It holds while the value is larger."""
    below: float | None = Field(default=None, ge=-1e30, le=1e30)
    """It holds while the value is smaller."""
    for_steps: int = Field(default=1, ge=1, le=1000)
    """In so many steps in a row; of an evaluation's metric, evaluations in a row. A value that is missing or no number
    ends the row."""


class BestMode(StrEnum):
    """Which of two values is the better one."""

    MAX = "Max"
    MIN = "Min"


class KeepBestSpec(ApiModel):
    """The checkpoint that is kept since no other has a better value."""

    metric: MetricName
    """As in stopWhen. Of an evaluation's metric every version that is evaluated is saved, whatever everySteps says; of
    a step's, versions that are saved compete with the value of the step that made them."""
    mode: BestMode = BestMode.MAX
    """Max: the larger value is the better one; Min: the smaller."""


_SAMPLES = "each.samplesPerPrompt"
_K = "int(METRIC.substring(METRIC.lastIndexOf('@') + 1))"
"""What stands behind the @. The API server takes string(k) for a text of any length, and refuses the rule."""
_NUMBER = "@[1-9][0-9]{0,3}$"
_NAMES_OF_SET = " || ".join(
    (
        *(f"METRIC.endsWith('/{name}')" for name in OF_EVALUATIONS),
        f"(METRIC.matches('/mean{_NUMBER}') && {_K} == {_SAMPLES})",
        f"(METRIC.matches('/std{_NUMBER}') && {_K} == {_SAMPLES} && {_SAMPLES} > 1)",
        f"(METRIC.matches('/pass{_NUMBER}') && "
        f"({_K} == {_SAMPLES} || ({_K} < {_SAMPLES} && {_K} in {[1 << power for power in range(13)]})))",
    )
)


def _metric_of(path: str) -> Callable[[Any], str | None]:
    first, *others = path.split(".")

    def found(job: Any) -> str | None:  # noqa: ANN401 - the whole spec, which imports this module
        value = getattr(job, first)
        for name in others:
            value = getattr(value, name)
        return None if value is None else value.metric

    return found


def _known(path: str, field: str) -> tuple[Rule, Rule]:
    """That a metric is one of the job's: of its steps, or of its evaluation."""
    metric_of, above = _metric_of(path), f"self.{field}"
    parents = [f"has(self.{'.'.join(field.split('.')[: n + 1])})" for n in range(field.count(".") + 1)]
    is_absent, metric = f"!({' && '.join(parents)})", f"{above}.metric"

    def is_known_step(job: Any) -> bool:  # noqa: ANN401 - as above
        name = metric_of(job)
        return name is None or is_of_evaluations(name) or is_of_steps(name)

    def is_evaluated(job: Any) -> bool:  # noqa: ANN401 - as above
        name = metric_of(job)
        if name is None or not is_of_evaluations(name):
            return True
        sets = () if job.evaluation is None else job.evaluation.sets
        return any(is_of_set(name, each.name, each.samples_per_prompt) for each in sets)

    of_users = " || ".join(f"({metric}.startsWith('{one}') && {metric} != '{one}')" for one in OF_USERS)
    return (
        Rule(
            field=f"{field}.metric",
            holds=is_known_step,
            sentence=f"{{{field}.metric}} is no metric of a step. Known are {', '.join((*OF_REPORTS, *OF_STEPS))}, "
            "what rewards and rollout functions name below reward/ and rollout/, and eval/SET/NAME of an evaluation.",
            cel=f"{is_absent} || {metric}.startsWith('{EVALUATION_PREFIX}') || "
            f"{metric} in {[*OF_REPORTS, *OF_STEPS]} || {of_users}",
        ),
        Rule(
            field=f"{field}.metric",
            holds=is_evaluated,
            sentence=f"{{{field}.metric}} is no metric of this job's evaluation. Give eval/SET/NAME, or "
            "eval/SET/SOURCE/NAME: SET is the name of one of evaluation.sets, NAME is mean@K (K: samplesPerPrompt of "
            "that set), std@K (of K above 1), pass@k with k of 1, 2, 4 ... K, "
            f"{', '.join(OF_EVALUATIONS[:-1])} or {OF_EVALUATIONS[-1]}.",
            cel=f"{is_absent} || !{metric}.startsWith('{EVALUATION_PREFIX}') || (has(self.evaluation) && "
            f"self.evaluation.sets.exists(each, {metric}.startsWith('{EVALUATION_PREFIX}' + each.name + '/') && "
            f"({_NAMES_OF_SET.replace('METRIC', metric)})))",
        ),
    )


MEASURED: tuple[Rule, ...] = (
    *_known("stop_when", "stopWhen"),
    *_known("checkpoint.keep_best", "checkpoint.keepBest"),
)
