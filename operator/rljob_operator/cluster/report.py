"""What the operator reports of one job: Events, log lines, and conditions that no decision sets.

Called by the reconciler. A status is written before the Event that reports it. It decides nothing.
"""

import logging
from collections.abc import Sequence

from rljob_api.spec import RLJob
from rljob_api.status import Condition, ConditionType, RLJobStatus
from rljob_api.times import timestamp
from rljob_operator.build import warnings
from rljob_operator.core import Decision, Event, Reason
from rljob_operator.core.conditions import find, with_condition
from rljob_operator.core.derived_status import with_tool_conditions
from rljob_operator.core.notices import replayed_decisions
from rljob_operator.kube.accepted_spec import Unreadable
from rljob_operator.kube.api import Json
from rljob_operator.kube.apply import Refusal
from rljob_operator.kube.clock import Clock
from rljob_operator.kube.events import Events, WaitEvents, record_of, remark, warning
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.status_writer import StatusWriter
from rljob_operator.kube.views import JobKey

_log = logging.getLogger(__name__)


def generation_of(raw: Json) -> int:
    """Of the newest spec."""
    generation: int = raw["metadata"].get("generation", 1)
    return generation


def labels_of(raw: Json) -> dict[str, str]:
    """Labels of the RLJob as they are now: a change of them is no new generation."""
    return raw["metadata"].get("labels") or {}


class JobReport:
    """One job's. `raw` is the job as the API server has it in this turn."""

    def __init__(self, key: JobKey, events: Events, metrics: Metrics, status: StatusWriter, clock: Clock) -> None:
        self._key = key
        self._events = events
        self._metrics = metrics
        self._status = status
        self._clock = clock
        self._waits = WaitEvents()
        self._standing = ""
        """Key of what was logged last of that kind."""
        self._has_replayed = False
        """An earlier operator may not have emitted the last decisions of the status."""

    @property
    def due_in(self) -> float | None:
        """In how many seconds a wait that goes on is to be reported."""
        return self._waits.due_in

    async def warn(self, raw: Json, reason: Reason, message: str) -> None:
        """Of something that is no decision of the core."""
        _log.warning("%s: %s: %s", self._key, reason.value, message)
        self._metrics.decisions.labels(reason.value, "").inc()
        await self._events.emit(self._key, raw, warning(reason.value, message))

    async def decision(self, raw: Json, job: RLJob, decision: Decision, overridden: Sequence[str]) -> None:
        """What the core decided, and with it a sentence for each field that the job has `overridden`."""
        for event in decision.events:
            scope = event.scope.value if event.scope is not None else ""
            _log.info("%s: %s: %s", self._key, " ".join(filter(None, (event.reason.value, scope))), event.message)
            self._metrics.decisions.labels(event.reason.value, scope).inc()
            await self._events.emit(self._key, raw, record_of(event), event.once)
        for sentence in overridden:
            await self._events.emit(self._key, raw, remark(Reason.OVERRIDDEN.value, sentence), once=sentence)
        if any(event.reason is Reason.ACCEPTED for event in decision.events):
            for sentence in warnings(job):
                await self._events.emit(self._key, raw, warning(Reason.DURABILITY.value, sentence))

    async def events(self, raw: Json, status: RLJobStatus, events: Sequence[Event]) -> None:
        """What was not decided in this turn; the first time with the last decisions of the status."""
        replayed = () if self._has_replayed else replayed_decisions(status, self._clock())
        self._has_replayed = True
        for event in (*replayed, *events):
            _log.info("%s: %s: %s", self._key, event.reason.value, event.message)
            await self._events.emit(self._key, raw, record_of(event), event.once)

    async def standing(self, raw: Json, status: RLJobStatus, event: Event) -> None:
        """An event that every turn reports as long as it holds: logged once, as it is emitted once."""
        await self.events(raw, status, [])
        if event.once != self._standing:
            self._standing = event.once
            _log.info("%s: %s: %s", self._key, event.reason.value, event.message)
        await self._events.emit(self._key, raw, record_of(event), event.once)

    async def wait(self, raw: Json, status: RLJobStatus) -> None:
        """What the job waits for by its status, once it has waited for long."""
        record = self._waits.of(status)
        if record is not None:
            await self._events.emit(self._key, raw, record)

    async def refusals(self, raw: Json, refusals: Sequence[Refusal]) -> None:
        """Refused objects that a person has to act on. Raises where the next turn may succeed all the same."""
        for refusal in refusals:
            if not refusal.passes:
                message = f"{refusal}; it is asked for again, and the rest goes on"
                await self.warn(raw, Reason.OBJECT_REFUSED, message)
        for refusal in refusals:
            if refusal.passes:
                raise refusal.error

    async def refuse(
        self, raw: Json, status: RLJobStatus, reason: Reason, message: str, other: RLJobStatus | None = None
    ) -> None:
        """Why the job is not taken care of; what runs already is left as it is.

        `other` is what the status becomes beside that, where it is not `status`, which is persisted.
        """
        new = with_condition(
            (other or status).model_copy(update={"observed_generation": generation_of(raw), "reason": reason.value}),
            ConditionType.ACCEPTED,
            self._clock(),
            true=False,
            reason=reason.value,
            message=message,
        )
        new = with_tool_conditions(new, self._clock())
        if new == status:
            return
        is_news = find(status, ConditionType.ACCEPTED) != find(new, ConditionType.ACCEPTED)
        await self._status.write(raw, status, new)
        if is_news:
            await self.warn(raw, reason, message)

    async def wait_before_decision(self, raw: Json, status: RLJobStatus, reason: Reason, message: str) -> None:
        """What a job waits for before anything of it is decided."""
        new = with_condition(
            status, ConditionType.READY, self._clock(), true=False, reason=reason.value, message=message
        ).model_copy(update={"observed_generation": generation_of(raw), "reason": reason.value})
        if new != status:
            await self._status.write(raw, status, new)
        await self.wait(raw, new)

    async def unreadable(self, raw: Json, status: Unreadable) -> None:
        """Nothing is done for a job whose status cannot be read. What runs already is left as it is."""
        message = (
            f"the status is not one that this operator knows: {status.problem}; nothing is begun or restarted for this"
            " job. Run the operator's version that wrote it, or mend the status; if its progress may be lost, delete"
            " the job and apply it again"
        )
        condition = Condition(
            type=ConditionType.ACCEPTED,
            status="False",
            reason=Reason.STATUS_UNREADABLE.value,
            message=message,
            last_transition_time=timestamp(self._clock()),
            observed_generation=generation_of(raw),
        )
        if await self._status.write_condition(raw, condition):
            await self.warn(raw, Reason.STATUS_UNREADABLE, message)
