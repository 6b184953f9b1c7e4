"""Values that `stopWhen` and `checkpoint.keepBest` go by: taken from reports, durable with them, void with their past.

The rooms of the coordinator that commit a step, an evaluation, a record or an epoch ask it for the change that goes
into the same transaction. So a step that a restart repeats has one value, the last, and no restart counts it twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rljob_api.metric_names import is_of_evaluations
from rljob_api.wire.checkpoints import BestCheckpoint, CheckpointRecord, Measured, MetricValues
from rljob_workers.dcs.checkpoints.retention import Retention
from rljob_workers.dcs.coordinator.best_checkpoint import after_record, best_of
from rljob_workers.dcs.coordinator.records import MEASURED, Change
from rljob_workers.dcs.coordinator.stop_condition import reached

if TYPE_CHECKING:
    from rljob_api.wire.ranks import StepReport
    from rljob_workers.dcs.coordinator.context import CoordinatorContext

MOST_STOP_VALUES = 1000
"""As many as forSteps can ask for."""

MOST_PENDING = 500
"""Versions after the last record whose values wait for a record: far more than are trained while one is written."""


class Measures:
    """Of one job. Where it goes by no values, no change is made."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context
        spec = context.job.spec
        self._stop, self._best = spec.stop_when, spec.checkpoint.keep_best

    @property
    def _is_needed(self) -> bool:
        return self._stop is not None or self._best is not None

    @property
    def known(self) -> Measured:
        """As it is now. Values of metrics that the job no longer goes by are forgotten."""
        known = self._context.store.value(MEASURED) or Measured()
        stop = "" if self._stop is None else self._stop.metric
        best = "" if self._best is None else self._best.metric
        return known.model_copy(
            update={"stop": _only_of(known.stop, stop), "candidates": _only_of(known.candidates, best)}
        )

    def best(self) -> BestCheckpoint | None:
        """Which checkpoint keepBest keeps now."""
        return None if self._best is None else best_of(self._best, self.known)

    def reached(self, version: int) -> str | None:
        """How stopWhen holds for a job at this version; None: it does not, or there is none."""
        return None if self._stop is None else reached(self._stop, self.known.stop.values, version)

    @property
    def stops_by_evaluations(self) -> bool:
        """Whether stopWhen goes by a metric of evaluations."""
        return self._stop is not None and is_of_evaluations(self._stop.metric)

    def after_step(self, report: StepReport) -> list[Change]:
        """A step was trained: its version has its values."""

        def value(metric: str) -> float | None:
            if metric in ("reward", "loss", "staleness"):
                return float(getattr(report, metric))
            return report.metrics.get(metric)

        return self._with(report.version, value, evaluates=False)

    def after_evaluation(self, version: int, metrics: Mapping[str, float]) -> list[Change]:
        """A version was evaluated."""
        return self._with(version, metrics.get, evaluates=True)

    def with_record(self, record: CheckpointRecord) -> CheckpointRecord:
        """The record with what is measured then, for a restart without the control Redis."""
        if not self._is_needed:
            return record
        measured = self.known
        if self._best is not None:
            spec = self._context.job.spec.checkpoint
            retention = Retention(spec.keep, spec.keep_every)
            measured = after_record(self._best, measured, record.id.version, record.folder, retention)
        best = None if self._best is None else best_of(self._best, measured)
        return record.model_copy(update={"measured": measured, "best": best})

    def _with(self, version: int, value: Callable[[str], float | None], *, evaluates: bool) -> list[Change]:
        if not self._is_needed:
            return []
        known = self.known
        update: dict[str, MetricValues] = {}
        if self._stop is not None and is_of_evaluations(self._stop.metric) is evaluates:
            update["stop"] = _next_in_row(known.stop, version, value(self._stop.metric))
        if self._best is not None and is_of_evaluations(self._best.metric) is evaluates:
            update["candidates"] = _candidates(known, version, value(self._best.metric))
        return [MEASURED.put(known.model_copy(update=update))] if update else []


def restored(known: Measured | None, record: CheckpointRecord | None, version: int) -> Measured | None:
    """What is measured of the past of an epoch that begins with `version`.

    `record` is the one that it begins with where the control Redis has another, or none: its values are the newer ones.
    """
    if record is not None and record.measured is not None and record.id.version == version:
        known = record.measured if known is None else _joined(known, record.measured)
    if known is None:
        return None
    return Measured(
        stop=_until(known.stop, version),
        candidates=_until(known.candidates, version),
        folders={one: name for one, name in known.folders.items() if one <= version},
    )


def _only_of(values: MetricValues, metric: str) -> MetricValues:
    return values if values.metric == metric else MetricValues(metric=metric)


def _joined(known: Measured, recorded: Measured) -> Measured:
    """What was measured after the record may be known as well."""
    return Measured(
        stop=_with_those_of(recorded.stop, known.stop),
        candidates=_with_those_of(recorded.candidates, known.candidates),
        folders=recorded.folders,
    )


def _with_those_of(values: MetricValues, others: MetricValues) -> MetricValues:
    if values.metric != others.metric:
        return values
    return values.model_copy(update={"values": others.values | values.values})


def _until(values: MetricValues, version: int) -> MetricValues:
    until = {one: value for one, value in values.values.items() if one <= version}
    return values.model_copy(update={"values": until})


def _next_in_row(known: MetricValues, version: int, value: float | None) -> MetricValues:
    """With a value more; one that is missing, or no number, ends the row."""
    if value is None or not math.isfinite(value):
        return known.model_copy(update={"values": {}})
    values = {**known.values, version: value}
    return known.model_copy(update={"values": {one: values[one] for one in sorted(values)[-MOST_STOP_VALUES:]}})


def _candidates(known: Measured, version: int, value: float | None) -> MetricValues:
    """With a value more; of versions that are not recorded the last ones alone."""
    values = {one: old for one, old in known.candidates.values.items() if one != version}
    if value is not None and math.isfinite(value):
        values[version] = value
    pending = sorted(one for one in values if one not in known.folders)
    for one in pending[: max(0, len(pending) - MOST_PENDING)]:
        del values[one]
    return known.candidates.model_copy(update={"values": values})
