"""Reachability of the coordinator: while it does not answer, the state of the job is unknown and no failure is counted.

A failed request is reported after a moment; after heartbeatTimeoutSeconds without an answer the job is no longer Ready.
The first answer after that may carry ages as old as the lost contact: `contact_since` bounds what counts against a rank
or launcher. Pure.
"""

from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.times import seconds, timestamp
from rljob_operator.core.conditions import find, with_condition, without
from rljob_operator.core.decision import Event, Step
from rljob_operator.core.observed import NoContact, Observed
from rljob_operator.core.reasons import Reason

REPORT_AFTER_SECONDS = 10.0
"""A coordinator that is started again is refused for a second or two, and its pod shows that by itself."""


ANSWERS = "Answers"
"""Reason of the condition where no lost contact was reported before: a launcher that does not poll then hangs."""


_KIND = ConditionType.COORDINATOR_REACHABLE


def reached(observed: Observed, status: RLJobStatus, now: float) -> Step:
    """`status` with the condition CoordinatorReachable, and the event of its change."""
    if observed.coordinator is not None and observed.on_cluster:
        return _answering(status, now)
    no_contact = observed.no_contact
    if no_contact is None or now < _reported_at(observed, no_contact):
        return status, ()
    was_reported = _is_reported_lost(status)
    since = _since_when(status, no_contact)
    message = f"{no_contact.message} (since {timestamp(since)[:19]}Z). {_MEANWHILE}"
    status = with_condition(status, _KIND, now, true=False, reason=no_contact.reason, message=message)
    # That a pod of the infrastructure is down is reported where it is observed.
    is_news = not was_reported and no_contact.reason is not Reason.INFRASTRUCTURE_DOWN
    return status, (Event(now, no_contact.reason, message),) if is_news else ()


def not_asked(status: RLJobStatus) -> RLJobStatus:
    """`status` of a job at rest, whose coordinator is not asked any more."""
    return status if find(status, _KIND) is None else without(status, (_KIND,))


def is_out_of_contact(observed: Observed, status: RLJobStatus, now: float) -> bool:
    """Whether the coordinator has not answered for heartbeatTimeoutSeconds."""
    no_contact, limit = observed.no_contact, observed.policy.heartbeat_timeout_seconds
    return no_contact is not None and lasts(status, no_contact, limit, now)


def lasts(status: RLJobStatus, no_contact: NoContact, limit_seconds: float, now: float) -> bool:
    """Whether contact has been lost for longer than that."""
    return now > _since_when(status, no_contact) + limit_seconds


def no_contact_counts_at(observed: Observed, status: RLJobStatus) -> list[float]:
    """When the lost contact is reported, and when the job is no longer Ready for it; empty while there is contact."""
    no_contact, limit = observed.no_contact, observed.policy.heartbeat_timeout_seconds
    if no_contact is None:
        return []
    return [_reported_at(observed, no_contact), _since_when(status, no_contact) + limit]


def _since_when(status: RLJobStatus, no_contact: NoContact) -> float:
    """When contact was lost; an operator that was started meanwhile goes on from what the status has."""
    condition = find(status, _KIND)
    if condition is None or condition.status != "False":
        return no_contact.since
    return min(no_contact.since, seconds(condition.last_transition_time))


def _reported_at(observed: Observed, no_contact: NoContact) -> float:
    """When the lost contact is reported. A coordinator whose pod has just become ready is not yet out of reach."""
    limit = observed.policy.heartbeat_timeout_seconds
    return no_contact.reason_since + (
        limit if no_contact.reason is Reason.INFRASTRUCTURE_DOWN else min(REPORT_AFTER_SECONDS, limit)
    )


def contact_since(status: RLJobStatus) -> float:
    """Since when the coordinator answers again, after a lost contact that was reported; 0 where there was none.

    No age of a rank or launcher counts as older.
    """
    condition = find(status, _KIND)
    is_back = condition is not None and condition.status == "True" and condition.reason == Reason.COORDINATOR_REACHABLE
    return seconds(condition.last_transition_time) if condition is not None and is_back else 0.0


def seen_seconds(status: RLJobStatus, age: float, now: float) -> float:
    """How much of an age that the coordinator reports counts against a rank or launcher."""
    return min(age, max(0.0, now - contact_since(status)))


def _answering(status: RLJobStatus, now: float) -> Step:
    condition = find(status, _KIND)
    if condition is not None and condition.status == "True":
        return status, ()
    again = Reason.COORDINATOR_REACHABLE
    reason, suffix = (ANSWERS, "") if condition is None else (again, " again")
    message = f"the coordinator answers the operator{suffix}"
    events = (Event(now, again, message),) if _is_reported_lost(status) else ()
    return with_condition(status, _KIND, now, true=True, reason=reason, message=message), events


def _is_reported_lost(status: RLJobStatus) -> bool:
    condition = find(status, _KIND)
    return condition is not None and condition.status == "False" and condition.reason != Reason.INFRASTRUCTURE_DOWN


_MEANWHILE = "Ranks go on as they were told last; nothing is counted against anybody until it answers"
