"""Conditions: set and read. A condition's time changes only when its status does."""

from collections.abc import Iterable

from rljob_api.status import Condition, ConditionType, RLJobStatus
from rljob_api.times import timestamp

TERMINAL = (ConditionType.SUCCEEDED, ConditionType.FAILED, ConditionType.INTERRUPTED)
"""Once one of these is true, nothing is started any more."""


def find(status: RLJobStatus, kind: str) -> Condition | None:
    """The condition of this type, or None."""
    return next((condition for condition in status.conditions if condition.type == kind), None)


def is_true(status: RLJobStatus, kind: str) -> bool:
    """Whether the condition is there and true."""
    condition = find(status, kind)
    return condition is not None and condition.status == "True"


def terminal(status: RLJobStatus) -> Condition | None:
    """The condition that ended the job, or None."""
    return next((c for c in status.conditions if c.type in TERMINAL and c.status == "True"), None)


def with_condition(
    status: RLJobStatus, kind: ConditionType, now: float, *, true: bool, reason: str, message: str
) -> RLJobStatus:
    """`status` with this condition set."""
    word = "True" if true else "False"
    old = find(status, kind)
    since = old.last_transition_time if old is not None and old.status == word else timestamp(now)
    said: dict[str, object] = {"type": kind, "status": word, "reason": reason, "message": message}
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
