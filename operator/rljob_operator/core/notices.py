"""Notices: events for what restarts nothing, events of the coordinator, and decisions replayed after a restart.

Each is emitted once per key, also by a restarted operator. A local run's journal and a cluster's Events both take
their events from here. How often the coordinator reports what the queue holds back is the coordinator's choice. Pure.
"""

from collections.abc import Mapping

from rljob_api.names import EXIT_SUCCEEDED, Epoch, Scope
from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.times import timestamp
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.observation import CoordinatorEvent, EventKind
from rljob_operator.core.causes import Causes
from rljob_operator.core.conditions import is_queue_draining, terminal, with_condition
from rljob_operator.core.decision import Event, Step
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason

_REPORTED_OTHERWISE = (FailureKind.LAUNCHER_LOST, FailureKind.ROWS_LOST)
"""Of an earlier incarnation these are no news: a pod's own end is, and the event of the storage unit that lost the
rows."""


def notices(observed: Observed, causes: Causes, now: float) -> tuple[Event, ...]:
    """Engines that their launchers restart, and failures of incarnations that are restarted already."""
    if observed.coordinator is None:
        return ()
    current = {failure.id for failure in causes.failures}
    events = []
    for failure in observed.coordinator.failures:
        role = failure.pod.role
        if failure.kind is FailureKind.ENGINE_EXITED:
            events.append(Event(now, Reason.ENGINE_EXITED, failure.message, role))
        elif failure.kind not in _REPORTED_OTHERWISE and failure.id not in current:
            incarnation = f"epoch {failure.epoch}, generation {failure.generation}"
            events.append(
                Event(now, Reason.EARLIER_INCARNATION, f"{failure.message} ({incarnation}: restarted already)", role)
            )
        elif failure.exit_code == EXIT_SUCCEEDED:
            events.append(Event(now, Reason.RANK_EXITED, f"{failure.message}; that is no failure", role))
    return tuple(events)


def replacements(causes: Causes, now: float) -> tuple[Event, ...]:
    """Of the pods whose incarnations are given up now: those for which nothing is restarted."""
    reported = [
        *((cause, "it had not run yet, and another one takes its place") for cause in causes.unbegun),
        *((cause, "it is replaced, and does not count: its job was restarted already") for cause in causes.silenced),
    ]
    return tuple(
        Event(now, cause.reason, f"{cause.message.rstrip('.')}; {what}", cause.pod.role) for cause, what in reported
    )


def queue_notices(observed: Observed, status: RLJobStatus, now: float) -> Step:
    """`status` with what the queue reports of a drain and of rows that it gave up."""
    status, drain = _queue_drain(observed, status, now)
    status, evicted = _evicted_rows(observed, status, now)
    return status, (*drain, *evicted)


def _queue_drain(observed: Observed, status: RLJobStatus, now: float) -> Step:
    """Reports that the queue drains, and that tickets are given again: as an event, and in `Stalled`.

    A command drains it, and reports what it still waits for. A job that therefore does not advance is not
    stalled.
    """
    if observed.open_coordinator is None:
        return status, ()
    since = observed.open_coordinator.queue.draining_since
    if (since is not None) == is_queue_draining(status):
        return status, ()
    if since is not None:
        message = f"the queue drains: no ticket is given since {timestamp(since)}, until `rljob queue drain --off`"
        return _with_drain(status, Reason.QUEUE_DRAINING, message, now)
    return _with_drain(status, Reason.TICKETS_GIVEN, "the drain was taken back: tickets are given again", now)


def _evicted_rows(observed: Observed, status: RLJobStatus, now: float) -> Step:
    """Reports that storage was full and the queue gave rows up, since only the user can give it more.

    The status remembers the last report by its number of rows.
    """
    room = observed.coordinator.queue.room if observed.coordinator is not None else None
    if room is None or room.rows == status.training.rows_dropped:
        return status, ()
    training = status.training.model_copy(update={"rows_dropped": room.rows})
    event = Event(now, Reason.ROWS_DROPPED, room.message)
    return status.model_copy(update={"training": training}), (event,)


def _with_drain(status: RLJobStatus, reason: Reason, message: str, now: float) -> Step:
    status = with_condition(status, ConditionType.STALLED, now, true=False, reason=reason, message=message)
    return status, (Event(now, reason, message),)


REPORTED: Mapping[str, Reason] = {
    EventKind.EVALUATED: Reason.EVALUATED,
    EventKind.EVALUATION_UNFINISHED: Reason.EVALUATION_UNFINISHED,
    EventKind.UNIT_LOST: Reason.STORAGE_UNIT_LOST,
    EventKind.ROWS_LOST: Reason.ROWS_LOST,
    EventKind.COLUMNS_CHANGED: Reason.COLUMNS_CHANGED,
    EventKind.INPUT_CHANGED: Reason.INPUT_CHANGED,
    EventKind.PROMPT_SET_ASIDE: Reason.PROMPT_SET_ASIDE,
    EventKind.CHECKPOINT_GIVEN_UP: Reason.CHECKPOINT_GIVEN_UP,
    EventKind.CHECKPOINT_DAMAGED: Reason.CHECKPOINT_DAMAGED,
    EventKind.WRONG_WEIGHTS: Reason.WRONG_WEIGHTS,
    EventKind.ENGINE_STALLED: Reason.ENGINE_STALLED,
    EventKind.TOOL_TEXT_CUT: Reason.TOOL_TEXT_CUT,
    EventKind.FUNCTION_BLOCKS: Reason.FUNCTION_BLOCKS,
    EventKind.STEP_SKIPPED: Reason.STEP_SKIPPED,
    EventKind.GRADIENT_SPIKE: Reason.GRADIENT_SPIKE,
    EventKind.TEMPLATE_NOT_SAVED: Reason.TEMPLATE_NOT_SAVED,
    EventKind.REWARD_RETRIED: Reason.REWARD_RETRIED,
    EventKind.NOTHING_LEARNT: Reason.NOTHING_LEARNT,
    EventKind.NO_VARIANCE: Reason.NO_VARIANCE,
    EventKind.ENTROPY_COLLAPSED: Reason.ENTROPY_COLLAPSED,
    EventKind.NO_GRADIENT: Reason.NO_GRADIENT,
    EventKind.ALL_CUT_OFF: Reason.ALL_CUT_OFF,
    EventKind.MISMATCH_RISING: Reason.MISMATCH_RISING,
    EventKind.METRIC_MISSING: Reason.METRIC_MISSING,
}
"""The others are progress, or something is decided on them, and that decision has an event."""


REPLAY_SECONDS = 600.0
"""What is older is not replayed: it is no news to a supervisor that begins, and its event may have expired."""


def reported(event: CoordinatorEvent, status: RLJobStatus) -> Event | None:
    """An event of the coordinator as one of ours, if it is to be reported to the user of a job of this status."""
    reason = REPORTED.get(event.kind)
    if reason is None or _is_expected(event, status):
        return None
    role = event.pod.role if event.pod is not None else None
    return Event(event.at, reason, event.message, role, once=f"{event.epoch}/{event.id}/{event.at:.6f}")


def replayed_decisions(status: RLJobStatus, now: float) -> tuple[Event, ...]:
    """The last decisions, as the status remembers them: their operator may have ended before it emitted them."""
    found = []
    restart, ended = status.restart, terminal(status)
    if restart.scope == Scope.GLOBAL and restart.reason in set(Reason) and _is_recent(restart.decided_at, now):
        message = restarts_in(restart.epoch, restart.message or "")
        at = restart.decided_at or now
        found.append(Event(at, Reason(restart.reason), message, scope=Scope.GLOBAL, once=restart.decision_id))
    if ended is not None and ended.reason in set(Reason) and _is_recent(status.ended_at, now):
        found.append(Event(status.ended_at or now, Reason(ended.reason), ended.message, once=end_of(status)))
    return tuple(found)


def restarts_in(epoch: Epoch, why: str, wait: str = "") -> str:
    """The sentence of a global restart; `wait`: after how long."""
    return f"{why.rstrip('.')}; the job restarts in epoch {epoch}{wait}"


def end_of(status: RLJobStatus) -> str:
    """Names the end of a job: it has one in each epoch at most."""
    return f"end/{status.restart.epoch}"


def epoch_opened(point: RestorePoint, at: float) -> Event:
    """That an epoch is open, and from where it goes on."""
    message = (
        f"epoch {point.epoch} is open: lineage {point.lineage} from version {point.version}, "
        f"{point.kept_groups} groups kept, {point.dropped_groups} generated again"
    )
    return Event(at, Reason.EPOCH_OPENED, message, once=f"open/{point.epoch}")


def _is_expected(event: CoordinatorEvent, status: RLJobStatus) -> bool:
    """Whether a storage unit came back empty since the whole job was begun or resumed: units keep nothing over that."""
    was_begun = status.restart.scope is None
    return event.kind == EventKind.UNIT_LOST and was_begun and event.epoch < status.restart.epoch


def _is_recent(at: float | None, now: float) -> bool:
    return at is not None and now - at < REPLAY_SECONDS
