"""Sight: what is said of a job about which nothing can be decided, since its coordinator must not be asked.

Pure. Called by whoever holds a job back (a name of it is somebody else's) instead of `decide`.
"""

from rljob_api.status import ConditionType, RLJobStatus
from rljob_operator.core.conditions import terminal, was_well, with_condition, with_unknown
from rljob_operator.core.observed import Silence
from rljob_operator.core.phase import phase
from rljob_operator.core.reach import lasts


def out_of_sight(status: RLJobStatus, silence: Silence, limit_seconds: float, now: float) -> RLJobStatus:
    """`status` of a job that was well and of which nobody has heard for so long: nobody knows whether it is."""
    if not was_well(status) or terminal(status) is not None or not lasts(status, silence, limit_seconds, now):
        return status
    reason, message = silence.reason.value, silence.message
    kind = ConditionType.COORDINATOR_REACHABLE
    status = with_condition(status, kind, now, true=False, reason=reason, message=message)
    status = with_unknown(status, ConditionType.READY, now, reason=reason, message=message)
    return status.model_copy(update={"phase": phase(status)})
