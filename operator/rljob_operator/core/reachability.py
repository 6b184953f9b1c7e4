"""Reachability of the coordinator: while it does not answer, the state of the job is unknown and no failure is counted.

A failed request is reported after a moment; after heartbeatTimeoutSeconds without an answer the job is no longer Ready.
The first answer after a silence may carry ages as old as the silence: `heard_since` bounds what counts against a rank
or launcher. Pure.
"""

from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.times import seconds, timestamp
from rljob_operator.core.conditions import find, with_condition, without
from rljob_operator.core.decision import Event, Step
from rljob_operator.core.observed import Observed, Silence
from rljob_operator.core.reasons import Reason

TOLD_AFTER_SECONDS = 10.0
"""A coordinator that is started again is refused for a second or two, and its pod says so by itself."""


ANSWERS = "Answers"
"""Reason of the condition where no silence was told before: what is silent then is silent by itself."""


_KIND = ConditionType.COORDINATOR_REACHABLE


def reached(observed: Observed, status: RLJobStatus, now: float) -> Step:
    """`status` with the condition CoordinatorReachable, and the event of its change."""
    if observed.coordinator is not None and observed.on_cluster:
        return _heard(status, now)
    silence = observed.silence
    if silence is None or now < told_at(observed, silence):
        return status, ()
    was_told = _is_lost(status)
    since = since_when(status, silence)
    message = f"{silence.message} (since {timestamp(since)[:19]}Z). {_MEANWHILE}"
    status = with_condition(status, _KIND, now, true=False, reason=silence.reason, message=message)
    # That a pod of the infrastructure is down is told where it is seen.
    is_news = not was_told and silence.reason is not Reason.INFRASTRUCTURE_DOWN
    return status, (Event(now, silence.reason, message),) if is_news else ()


def not_asked(status: RLJobStatus) -> RLJobStatus:
    """`status` of a job at rest: nobody asks its coordinator any more."""
    return status if find(status, _KIND) is None else without(status, (_KIND,))


def is_blind(observed: Observed, status: RLJobStatus, now: float) -> bool:
    """Whether nobody has heard of the job for heartbeatTimeoutSeconds."""
    silence, limit = observed.silence, observed.policy.heartbeat_timeout_seconds
    return silence is not None and lasts(status, silence, limit, now)


def lasts(status: RLJobStatus, silence: Silence, limit_seconds: float, now: float) -> bool:
    """Whether a silence is longer than that."""
    return now > since_when(status, silence) + limit_seconds


def since_when(status: RLJobStatus, silence: Silence) -> float:
    """When the silence began; an operator that was started meanwhile goes on from what the status says."""
    told = find(status, _KIND)
    if told is None or told.status != "False":
        return silence.since
    return min(silence.since, seconds(told.last_transition_time))


def told_at(observed: Observed, silence: Silence) -> float:
    """When a silence is told. A coordinator whose pod has just become ready is not yet out of reach."""
    limit = observed.policy.heartbeat_timeout_seconds
    return silence.reason_since + (
        limit if silence.reason is Reason.INFRASTRUCTURE_DOWN else min(TOLD_AFTER_SECONDS, limit)
    )


def heard_since(status: RLJobStatus) -> float:
    """Since when the coordinator answers again, after a silence that was told; 0 where there was none.

    No silence of anybody behind it counts as older.
    """
    told = find(status, _KIND)
    is_back = told is not None and told.status == "True" and told.reason == Reason.COORDINATOR_REACHABLE
    return seconds(told.last_transition_time) if told is not None and is_back else 0.0


def seen_seconds(status: RLJobStatus, age: float, now: float) -> float:
    """How much of an age that the coordinator tells can be held against anybody."""
    return min(age, max(0.0, now - heard_since(status)))


def _heard(status: RLJobStatus, now: float) -> Step:
    told = find(status, _KIND)
    if told is not None and told.status == "True":
        return status, ()
    again = Reason.COORDINATOR_REACHABLE
    reason, word = (ANSWERS, "") if told is None else (again, " again")
    message = f"the coordinator answers the operator{word}"
    events = (Event(now, again, message),) if _is_lost(status) else ()
    return with_condition(status, _KIND, now, true=True, reason=reason, message=message), events


def _is_lost(status: RLJobStatus) -> bool:
    told = find(status, _KIND)
    return told is not None and told.status == "False" and told.reason != Reason.INFRASTRUCTURE_DOWN


_MEANWHILE = "Ranks go on as they were told last; nothing is counted against anybody until it answers"
