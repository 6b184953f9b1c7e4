"""Withheld tickets: somebody drains the queue. It is told, and a job that therefore does not advance is not stalled.

Pure. The drain itself is the queue's; what it still waits for, its command says.
"""

from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.times import timestamp
from rljob_api.wire.observation import ServerState
from rljob_operator.core.conditions import find, with_condition
from rljob_operator.core.decision import Event
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason


def withheld(observed: Observed, status: RLJobStatus, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
    """Says once that the queue drains, and once that tickets are given again: as an event, and in `Stalled`."""
    if observed.coordinator is None or observed.coordinator.server is ServerState.OPENING:
        return status, ()
    since = observed.coordinator.queue.draining_since
    if (since is not None) == is_told(status):
        return status, ()
    if since is not None:
        message = f"the queue drains: no ticket is given since {timestamp(since)}, until `rljob queue drain --off`"
        return _told(status, Reason.QUEUE_DRAINING, message, now)
    return _told(status, Reason.TICKETS_GIVEN, "the drain was taken back: tickets are given again", now)


def is_told(status: RLJobStatus) -> bool:
    """Whether the status says that the queue drains."""
    condition = find(status, ConditionType.STALLED)
    return condition is not None and condition.reason == Reason.QUEUE_DRAINING.value


def _told(status: RLJobStatus, reason: Reason, message: str, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
    status = with_condition(status, ConditionType.STALLED, now, true=False, reason=reason.value, message=message)
    return status, (Event(now, reason, message),)
