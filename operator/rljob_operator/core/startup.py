"""The start-up deadline: a job that wants to run and is not Ready for startupDeadlineSeconds gives back what it holds.

Pure. Called by `decide`. One spell of not being Ready counts as one, over all the restarts in it: a job that is evicted
again and again before it is Ready holds devices for nothing, too.
"""

from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.times import seconds
from rljob_operator.core.conditions import find, is_true, terminal, was_well
from rljob_operator.core.drain import stopping
from rljob_operator.core.infrastructure import is_away
from rljob_operator.core.observed import Observed
from rljob_operator.core.reach import heard_since
from rljob_operator.core.reasons import Reason
from rljob_operator.core.scaling import is_scaling
from rljob_operator.core.verdicts import Fail
from rljob_operator.core.waits import waited_for


def too_late(observed: Observed, status: RLJobStatus, now: float) -> Fail | None:
    """The failure of a job that was not Ready in time. Names what it waited for."""
    at = too_late_at(observed, status)
    if at is None or now < at or stopping(observed, status) or _nobody_knows(observed, status, now):
        return None
    limit, wait = observed.wishes.startup_deadline_seconds, waited_for(observed, status, now)
    why = f"{wait.reason}: {wait.sentence}" if wait.reason else wait.sentence
    message = f"the job has not been Ready for startupDeadlineSeconds ({limit} s): {why}"
    return Fail(Reason.STARTUP_DEADLINE_EXCEEDED, message)


def too_late_at(observed: Observed, status: RLJobStatus) -> float | None:
    """Unix time at which the job will not have been Ready for too long; None: never."""
    limit = observed.wishes.startup_deadline_seconds
    if limit is None or status.waiting_since is None:
        return None
    ready = find(status, ConditionType.READY)
    # An earlier version of the operator leaves `waiting_since` as it finds it, and keeps the condition's time.
    unready = seconds(ready.last_transition_time) if ready is not None and ready.status == "False" else 0.0
    begun = max(status.waiting_since, status.started_at or 0.0, status.restart.backoff_until or 0.0)
    return max(begun, unready, heard_since(status)) + limit


def waiting(status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` with the time since which the job waits."""
    rests = terminal(status) is not None or is_true(status, ConditionType.SUSPENDED) or status.restart.epoch == 0
    waits = not (rests or was_well(status) or is_scaling(status))
    since = (status.waiting_since or now) if waits else None
    return status if since == status.waiting_since else status.model_copy(update={"waiting_since": since})


def _nobody_knows(observed: Observed, status: RLJobStatus, now: float) -> bool:
    """Whether all may be well in an open epoch: its coordinator runs, as far as is seen, and does not say."""
    if observed.coordinator is not None or status.restart.opened < status.restart.epoch:
        return False
    return not is_away(observed.infrastructure, now, observed.policy.heartbeat_timeout_seconds)
