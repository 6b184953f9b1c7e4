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
"""Neither True nor False: as Kubernetes sets it for a node that does not answer."""


def find(status: RLJobStatus, kind: str) -> Condition | None:
    """The condition of this type, or None."""
    return next((condition for condition in status.conditions if condition.type == kind), None)


def is_true(status: RLJobStatus, kind: str) -> bool:
    """Whether the condition is there and true."""
    condition = find(status, kind)
    return condition is not None and condition.status == "True"


def is_unknown(status: RLJobStatus, kind: str) -> bool:
    """Whether the condition is there and Unknown."""
    condition = find(status, kind)
    return condition is not None and condition.status == UNKNOWN


def was_ready(status: RLJobStatus) -> bool:
    """Whether the job was Ready at the last contact with its coordinator."""
    return is_true(status, ConditionType.READY) or is_unknown(status, ConditionType.READY)


def terminal(status: RLJobStatus) -> Condition | None:
    """The condition that ended the job, or None."""
    return next((c for c in status.conditions if c.type in TERMINAL and c.status == "True"), None)


def rests(status: RLJobStatus) -> bool:
    """Whether the job has ended or is suspended: nothing is decided any more, or not until the user asks for it."""
    return terminal(status) is not None or is_true(status, ConditionType.SUSPENDED)


def is_draining(status: RLJobStatus) -> bool:
    """Whether what trains was ordered to save before everything stops."""
    return find(status, ConditionType.INTERRUPTED) is not None or is_suspending(status)


def is_suspending(status: RLJobStatus) -> bool:
    """Whether what trains was ordered to save before the job is suspended."""
    condition = find(status, ConditionType.SUSPENDED)
    return condition is not None and condition.status == "False" and condition.reason == Reason.DRAINING


def with_condition(
    status: RLJobStatus, kind: ConditionType, now: float, *, true: bool, reason: str, message: str
) -> RLJobStatus:
    """`status` with this condition set."""
    return _written(status, kind, now, "True" if true else "False", reason, message)


def with_unknown(status: RLJobStatus, kind: ConditionType, now: float, *, reason: str, message: str) -> RLJobStatus:
    """`status` in which this condition is Unknown."""
    return _written(status, kind, now, UNKNOWN, reason, message)


def _written(
    status: RLJobStatus, kind: ConditionType, now: float, value: str, reason: str, message: str
) -> RLJobStatus:
    old = find(status, kind)
    since = old.last_transition_time if old is not None and old.status == value else timestamp(now)
    fields: dict[str, object] = {"type": kind, "status": value, "reason": str(reason), "message": shortened(message)}
    fields |= {"last_transition_time": since, "observed_generation": status.observed_generation}
    new = Condition.model_validate(fields) if old is None else old.model_copy(update=fields)
    if old == new:
        return status
    others = [condition for condition in status.conditions if condition.type != kind]
    return status.model_copy(update={"conditions": [*others, new]})


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
    return ready is not None and ready.status == "False" and ready.reason == reason


def is_queue_draining(status: RLJobStatus) -> bool:
    """Whether the queue drains, by the status."""
    condition = find(status, ConditionType.STALLED)
    return condition is not None and condition.reason == Reason.QUEUE_DRAINING
