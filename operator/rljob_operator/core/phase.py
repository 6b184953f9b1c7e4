"""The phase and its reason: a word each for display, derived from the conditions."""

from rljob_api.status import ConditionType, Phase, RLJobStatus
from rljob_operator.core.conditions import find, is_true, is_unknown
from rljob_operator.core.drain import is_draining
from rljob_operator.core.notices import is_queue_draining
from rljob_operator.core.readiness import STARTING
from rljob_operator.core.reasons import Reason
from rljob_operator.core.scaling import is_scaling, is_without_infrastructure

_BY_CONDITION = (
    (ConditionType.SUCCEEDED, Phase.SUCCEEDED),
    (ConditionType.FAILED, Phase.FAILED),
    (ConditionType.INTERRUPTED, Phase.INTERRUPTED),
    (ConditionType.SUSPENDED, Phase.SUSPENDED),
)
_WHILE_RUNNING = (
    (ConditionType.STALLED, Phase.STALLED),
    (ConditionType.RESTARTING, Phase.RESTARTING),
    (ConditionType.READY, Phase.RUNNING),
)


def phase(status: RLJobStatus) -> Phase:
    """The first condition in order of precedence that is true."""
    for kind, word in _BY_CONDITION:
        if is_true(status, kind):
            return word
    if is_draining(status):
        return Phase.DRAINING
    for kind, word in _WHILE_RUNNING:
        if is_true(status, kind):
            return word
    if is_unknown(status, ConditionType.READY):
        return Phase.UNKNOWN
    if is_scaling(status) or is_without_infrastructure(status):
        return Phase.RUNNING
    return Phase.STARTING if status.restart.epoch > 0 else Phase.PENDING


def reason(status: RLJobStatus) -> str:
    """Why it has ended, is suspended, stalls, restarts or waits for something; else why it was restarted last."""
    for kind, _ in (*_BY_CONDITION, *_WHILE_RUNNING[:-1]):
        condition = find(status, kind)
        if condition is not None and condition.status == "True":
            return condition.reason
    if is_queue_draining(status):
        return Reason.QUEUE_DRAINING.value
    taken = find(status, ConditionType.ACCEPTED)
    if taken is not None and taken.status == "False":
        return taken.reason
    waits = find(status, ConditionType.READY)
    if waits is not None and waits.status != "True" and waits.reason != STARTING:
        return waits.reason
    return status.restart.reason or ""
