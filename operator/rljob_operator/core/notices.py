"""Notices: what the user is told although it restarts nothing. Each once.

Pure. Called by `decide`. What the queue holds back or gives up, and how often that is said, is the coordinator's.
"""

from rljob_api.names import EXIT_SUCCEEDED
from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.times import timestamp
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.observation import ServerState
from rljob_operator.core.causes import Causes
from rljob_operator.core.conditions import find, with_condition
from rljob_operator.core.decision import Event
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason

_SAID_OTHERWISE = (FailureKind.LAUNCHER_LOST, FailureKind.ROWS_LOST)
"""Of an earlier life these are no news: a pod's own end is, and the event of the storage unit that lost the rows."""


def notices(observed: Observed, causes: Causes, now: float) -> tuple[Event, ...]:
    """Engines that their launchers restart, and failures of lives that are restarted already."""
    if observed.coordinator is None:
        return ()
    current = {failure.id for failure in causes.failures}
    events = []
    for failure in observed.coordinator.failures:
        role = failure.pod.role
        if failure.kind is FailureKind.ENGINE_EXITED:
            events.append(Event(now, Reason.ENGINE_EXITED, failure.message, role))
        elif failure.kind not in _SAID_OTHERWISE and failure.id not in current:
            life = f"epoch {failure.epoch}, generation {failure.generation}"
            events.append(Event(now, Reason.EARLIER_LIFE, f"{failure.message} ({life}: restarted already)", role))
        elif failure.exit_code == EXIT_SUCCEEDED:
            events.append(Event(now, Reason.RANK_EXITED, f"{failure.message}; that is no failure", role))
    return tuple(events)


def replacements(causes: Causes, now: float) -> tuple[Event, ...]:
    """Of the pods whose lives are given up now: those for which nothing is restarted."""
    told = [
        *((cause, "it had not run yet, and another one takes its place") for cause in causes.unbegun),
        *((cause, "it is replaced, and does not count: its job was restarted already") for cause in causes.silenced),
    ]
    return tuple(
        Event(now, cause.reason, f"{cause.message.rstrip('.')}; {what}", cause.pod.role) for cause, what in told
    )


def queue_drain(observed: Observed, status: RLJobStatus, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
    """Says that the queue drains, and that tickets are given again: as an event, and in `Stalled`.

    Somebody drains it by a command, which says what it still waits for. A job that therefore does not advance is not
    stalled.
    """
    if observed.coordinator is None or observed.coordinator.server is ServerState.OPENING:
        return status, ()
    since = observed.coordinator.queue.draining_since
    if (since is not None) == is_queue_draining(status):
        return status, ()
    if since is not None:
        message = f"the queue drains: no ticket is given since {timestamp(since)}, until `rljob queue drain --off`"
        return _with_drain(status, Reason.QUEUE_DRAINING, message, now)
    return _with_drain(status, Reason.TICKETS_GIVEN, "the drain was taken back: tickets are given again", now)


def is_queue_draining(status: RLJobStatus) -> bool:
    """Whether the status says that the queue drains."""
    condition = find(status, ConditionType.STALLED)
    return condition is not None and condition.reason == Reason.QUEUE_DRAINING.value


def evicted_rows(observed: Observed, status: RLJobStatus, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
    """Says that storage was full and the queue gave rows up, since only the user can give it more.

    The status remembers what was said last by its number of rows.
    """
    room = observed.coordinator.queue.room if observed.coordinator is not None else None
    if room is None or room.rows == status.training.rows_dropped:
        return status, ()
    training = status.training.model_copy(update={"rows_dropped": room.rows})
    event = Event(now, Reason.ROWS_DROPPED, room.message)
    return status.model_copy(update={"training": training}), (event,)


def _with_drain(status: RLJobStatus, reason: Reason, message: str, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
    status = with_condition(status, ConditionType.STALLED, now, true=False, reason=reason.value, message=message)
    return status, (Event(now, reason, message),)
