"""Metrics that a job goes by (`stopWhen`, `keepBest`) and that no step or evaluation has ever reported: a policy.

Pure. `health` asks it after each step and each evaluation. A metric is missed once, and one that came may be absent
later. A name of a user's function comes with the first step that has such figures, or is another one; ours may be of
what the first steps do not have, such as stale tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rljob_api.metric_names import OF_REPORTS, OF_STEPS, is_of_evaluations
from rljob_api.spec.measured import measured_metrics
from rljob_api.wire.checkpoints import StepRow
from rljob_api.wire.observation import EventKind

if TYPE_CHECKING:
    from rljob_api.spec import RLJobSpec
    from rljob_api.wire.checkpoints import Health
    from rljob_api.wire.observation import EvaluationReport
    from rljob_api.wire.ranks import StepReport

Metrics = Mapping[str, float]

PATIENCE = 10
"""Steps in a row without a metric of ours; one of a user's function is missed in the first."""


SHOWN_NAMES = 5
"""Metrics that a sentence lists in place of one that is missing."""


COUNTED_ONLY = frozenset({"optimizer/skipped_steps", "critic/skipped_steps"})
"""Reported by steps that have some: their absence is 0."""


@dataclass(frozen=True, slots=True)
class Missed:
    """Metrics after a report."""

    came: list[str]
    """All that have come until now."""
    rows: dict[str, StepRow] = field(default_factory=dict)
    """Key -> steps in a row without it, of those that have not come."""
    sentences: dict[str, str] = field(default_factory=dict)
    """Key -> what is reported of it now, with the cure."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A metric that has not come, and was not reported as missing."""

    where: str
    """The field that names it, below `spec`."""
    metric: str

    @property
    def key(self) -> str:
        """The event of its trouble."""
        return f"{EventKind.METRIC_MISSING}/{self.where}/{self.metric}"

    def sentence(self, by: str, given: Metrics) -> str:
        """`by` reports it not, and `given` instead."""
        beginning = self.metric.rpartition("/")[0]
        alike = sorted(name for name in given if name.rpartition("/")[0] == beginning)
        shown = ", ".join(alike[:SHOWN_NAMES]) + (" ..." if len(alike) > SHOWN_NAMES else "")
        known = f"; it has {shown}" if alike else ""
        stops = self.where.startswith("stopWhen")
        effect = "the job ends with its last rollout" if stops else "no checkpoint is kept by it"
        return (
            f"{by} reports no {self.metric}, which spec.{self.where} names{known}. As long as it does not come"
            f" {effect}. Correct the name, or have it reported."
        )


def missed_in_step(spec: RLJobSpec, known: Health, report: StepReport, *, trains_policy: bool) -> Missed:
    """After a step, which trains the policy or only the critic."""
    given = {**report.metrics, **dict.fromkeys(OF_REPORTS, 0.0)}
    rows, sentences = {}, {}
    for named in _absent(spec, known, given):
        if is_of_evaluations(named.metric) or not _may_come(named.metric, report.metrics, trains_policy=trains_policy):
            continue
        row = rows[named.key] = StepRow.continued(known.rows.get(named.key), report.step)
        if row.num_steps >= (PATIENCE if named.metric in OF_STEPS else 1):
            sentences[named.key] = named.sentence(f"step {report.step}", given)
    return Missed(_came(spec, known, given), rows, sentences)


def missed_in_evaluation(spec: RLJobSpec, known: Health, report: EvaluationReport) -> Missed:
    """After an evaluation, which has all of its metrics each time."""
    absent = [named for named in _absent(spec, known, report.metrics) if is_of_evaluations(named.metric)]
    sentences = {named.key: named.sentence("the evaluation", report.metrics) for named in absent}
    return Missed(_came(spec, known, report.metrics), sentences=sentences)


def _absent(spec: RLJobSpec, known: Health, given: Metrics) -> Iterator[_Named]:
    for where, metric in measured_metrics(spec):
        named = _Named(where, metric)
        if not (metric in COUNTED_ONLY or metric in given or metric in known.came or named.key in known.reported):
            yield named


def _came(spec: RLJobSpec, known: Health, given: Metrics) -> list[str]:
    found = {metric for _, metric in measured_metrics(spec) if metric in given and metric not in COUNTED_ONLY}
    return sorted(found.union(known.came))


def _may_come(metric: str, metrics: Metrics, *, trains_policy: bool) -> bool:
    """The step has figures of that kind: of the policy while it is trained, of rewards where a sample has one."""
    if metric.startswith("reward/"):
        return metrics.get("samples/invalid_share", 0.0) < 1.0
    if metric.startswith("loss/") and metrics.get("optimizer/skipped_steps", 0.0) > 0.0:
        return False
    return trains_policy or not metric.startswith(("policy/", "optimizer/", "correction/", "mismatch/", "loss/"))
