"""The phase: one word for display, derived from the conditions."""

from rljob_api.status import ConditionType, Phase, RLJobStatus
from rljob_operator.core.conditions import find, is_true

_BY_CONDITION = (
    (ConditionType.SUCCEEDED, Phase.SUCCEEDED),
    (ConditionType.FAILED, Phase.FAILED),
    (ConditionType.INTERRUPTED, Phase.INTERRUPTED),
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
    if find(status, ConditionType.INTERRUPTED) is not None:
        return Phase.DRAINING
    for kind, word in _WHILE_RUNNING:
        if is_true(status, kind):
            return word
    return Phase.STARTING if status.restart.epoch > 0 else Phase.PENDING
