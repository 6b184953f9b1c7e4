"""Reports of steps: a step is trained when every role that trains has reported it.

Called by the coordinator in its thread. What a part of the roles has reported is durable, so that a restart of the
coordinator loses nothing; a new epoch voids it, since no record can have it.
"""

from __future__ import annotations

from collections.abc import Mapping

from rljob_api.names import Role
from rljob_api.roles import LEADING_ROLE, SAVING_ROLES
from rljob_api.wire.checkpoints import Health
from rljob_api.wire.observation import EventKind
from rljob_api.wire.ranks import StepReport
from rljob_workers.dcs.coordinator.context import CoordinatorContext, bad_request
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.health import after_step
from rljob_workers.dcs.coordinator.measures import Measures
from rljob_workers.dcs.coordinator.rank_incarnations import RankIncarnations
from rljob_workers.dcs.coordinator.records import HEALTH, STEP_PARTS


def joined(parts: Mapping[Role, StepReport]) -> StepReport:
    """The report of a step that all these roles have trained: the leading role's, with the metrics of all."""
    leading = parts[LEADING_ROLE]
    metrics: dict[str, float] = {}
    for report in parts.values():
        metrics |= report.metrics
    return leading.model_copy(update={"metrics": metrics | leading.metrics})


class Steps:
    """Takes the reports of all roles in."""

    def __init__(
        self, context: CoordinatorContext, epochs: Epochs, ranks: RankIncarnations, measures: Measures
    ) -> None:
        self._context = context
        self._epochs = epochs
        self._ranks = ranks
        self._measures = measures

    def report(self, report: StepReport) -> None:
        """A role has trained a step. The same step of the same epoch twice is one."""
        self._ranks.check_incarnation(report.incarnation)
        own = report.incarnation.key.role
        if own not in SAVING_ROLES:
            raise bad_request(f"incarnation: {report.incarnation.key} is of no role that trains. Report no step.")
        last = self._epochs.last_step
        if last is not None and last.step >= report.step and last.incarnation.epoch == report.incarnation.epoch:
            return
        parts = self._parts(report.step) | {own: report}
        present = self._context.job.spec.roles.present()
        if all(role in parts for role in SAVING_ROLES if role in present):
            self._complete(joined(parts))
        else:
            self._context.store.commit([STEP_PARTS.put(_field(report), report)])

    def _parts(self, step: int) -> dict[Role, StepReport]:
        reports = self._context.store.rows(STEP_PARTS).values()
        return {report.incarnation.key.role: report for report in reports if report.step == step}

    def _complete(self, report: StepReport) -> None:
        epoch = report.incarnation.epoch
        demand = self._ranks.demand
        metrics = {**report.metrics, **demand.idle_shares(), **demand.trouble}
        report = report.model_copy(update={"metrics": metrics})
        message = f"Step {report.step} was trained: reward {report.reward:.4f}, loss {report.loss:.4f}."
        event = self._context.event(EventKind.STEP_TRAINED, epoch, message).model_copy(update={"step": report})
        parts = self._context.store.rows(STEP_PARTS).items()
        over = [STEP_PARTS.drop(field) for field, part in parts if part.step <= report.step]
        demand.step_ended(report.step)
        known = self._context.store.value(HEALTH) or Health()
        examined = after_step(self._context.job.spec, known, report)
        health = () if examined.health == known else (HEALTH.put(examined.health),)
        changes = (self._epochs.note_step(report), *self._measures.after_step(report), *health, *over)
        news = [self._context.event(one.kind, epoch, one.message) for one in examined.troubles]
        self._context.emit_once("step", f"{epoch}:{report.step}", event, *changes, beside=news)


def _field(report: StepReport) -> str:
    return f"{report.step}/{report.incarnation.key.role.value}"
