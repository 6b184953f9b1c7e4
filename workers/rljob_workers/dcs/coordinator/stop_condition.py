"""Whether a job has reached what `spec.stopWhen` asks for: a policy over the last values of its metric.

Pure. `measures` keeps the values, `turns` asks it before a rollout is begun.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rljob_api.metric_names import is_of_evaluations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rljob_api.spec.measured import StopWhenSpec

SHOWN = 3
"""Values that a sentence names; of a longer row the last ones."""


def reached(condition: StopWhenSpec, values: Mapping[int, float], version: int) -> str | None:
    """How the condition holds for a job at `version`, in a sentence; None: it does not.

    `values` of its metric, by version. Those of steps must be the values of `version` and of the versions right before
    it; those of evaluations are the last ones up to `version`.
    """
    known = sorted(one for one in values if one <= version)
    row = known[-condition.for_steps :]
    if len(row) < condition.for_steps or not all(_passes(condition, values[one]) for one in row):
        return None
    evaluated = is_of_evaluations(condition.metric)
    if not evaluated and row != list(range(version - condition.for_steps + 1, version + 1)):
        return None
    return _sentence(condition, [values[one] for one in row], row[-1], evaluated=evaluated)


def _passes(condition: StopWhenSpec, value: float) -> bool:
    if not math.isfinite(value):
        return False
    if condition.above is not None:
        return value > condition.above
    return condition.below is not None and value < condition.below


def _sentence(condition: StopWhenSpec, row: list[float], last: int, *, evaluated: bool) -> str:
    side, bound = ("above", condition.above) if condition.above is not None else ("below", condition.below)
    shown = ", ".join(f"{value:.6g}" for value in row[-SHOWN:])
    values = shown if len(row) <= SHOWN else f"... {shown}"
    of_version = f"of version {last}" if evaluated else f"of step {last - 1}"
    if len(row) == 1:
        return f"stopWhen holds: {condition.metric} {of_version} is {values}, {side} {bound:g}"
    what = "evaluations" if evaluated else "steps"
    return (
        f"stopWhen holds: {condition.metric} was {side} {bound:g} in {len(row)} {what} in a row ({values}), the last "
        f"one that {of_version}"
    )
