"""Conditions of a job's status: set, read, and the states that follow from one of them alone.

A condition's transition time changes only when its status does. Pure; the policies and the adapters call it.
"""

from collections.abc import Iterable

from rljob_api.status import Condition, ConditionType, RLJobStatus
from rljob_api.times import timestamp
from rljob_operator.core.reasons import Reason, shortened

TERMINAL = (ConditionType.SUCCEEDED, ConditionType.FAILED, ConditionType.INTERRUPTED)
"""Once one of these is true, nothing is started any more."""


UNKNOWN = "Unknown"
"""Neither True nor False: as Kubernetes says of a node that it cannot ask."""


def find(status: RLJobStatus, kind: str) -> Condition | None:
    """The condition of this type, or None."""
    return next((condition for condition in status.conditions if condition.type == kind), None)


def is_true(status: RLJobStatus, kind: str) -> bool:
    """Whether the condition is there and true."""
    condition = find(status, kind)
    return condition is not None and condition.status == "True"


def is_unknown(status: RLJobStatus, kind: str) -> bool:
    """Whether the condition is there, and nobody can know whether it holds."""
    condition = find(status, kind)
    return condition is not None and condition.status == UNKNOWN


def was_well(status: RLJobStatus) -> bool:
    """Whether the job was Ready when it was last heard of."""
    return is_true(status, ConditionType.READY) or is_unknown(status, ConditionType.READY)


def terminal(status: RLJobStatus) -> Condition | None:
    """The condition that ended the job, or None."""
    return next((c for c in status.conditions if c.type in TERMINAL and c.status == "True"), None)


def with_condition(
    status: RLJobStatus, kind: ConditionType, now: float, *, true: bool, reason: str, message: str
) -> RLJobStatus:
    """`status` with this condition set."""
    return _said(status, kind, now, "True" if true else "False", reason, message)


def with_unknown(status: RLJobStatus, kind: ConditionType, now: float, *, reason: str, message: str) -> RLJobStatus:
    """`status` in which nobody can know whether this condition holds."""
    return _said(status, kind, now, UNKNOWN, reason, message)


def _said(status: RLJobStatus, kind: ConditionType, now: float, word: str, reason: str, message: str) -> RLJobStatus:
    old = find(status, kind)
    since = old.last_transition_time if old is not None and old.status == word else timestamp(now)
    said: dict[str, object] = {"type": kind, "status": word, "reason": reason, "message": shortened(message)}
    said |= {"last_transition_time": since, "observed_generation": status.observed_generation}
    new = Condition.model_validate(said) if old is None else old.model_copy(update=said)
    if old == new:
        return status
    kept = [condition for condition in status.conditions if condition.type != kind]
    return status.model_copy(update={"conditions": [*kept, new]})


def without(status: RLJobStatus, kinds: Iterable[ConditionType]) -> RLJobStatus:
    """`status` without these conditions."""
    dropped = set(kinds)
    return status.model_copy(update={"conditions": [c for c in status.conditions if c.type not in dropped]})


def is_scaling(status: RLJobStatus) -> bool:
    """Whether the job runs, and only replicas that have joined it are not ready."""
    return _unready_for(status, Reason.SCALING)


def is_without_infrastructure(status: RLJobStatus) -> bool:
    """Whether every role is ready, and something that they need does not come back."""
    return _unready_for(status, Reason.INFRASTRUCTURE_DOWN)


def _unready_for(status: RLJobStatus, reason: Reason) -> bool:
    ready = find(status, ConditionType.READY)
    return ready is not None and ready.status == "False" and ready.reason == reason.value


def is_queue_draining(status: RLJobStatus) -> bool:
    """Whether the status says that the queue drains."""
    condition = find(status, ConditionType.STALLED)
    return condition is not None and condition.reason == Reason.QUEUE_DRAINING.value
