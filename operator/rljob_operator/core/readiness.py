"""Readiness: conditions that follow from what is seen, not from a decision."""

from rljob_api.status import ConditionType, RLJobStatus
from rljob_operator.core.conditions import find, is_true, with_condition
from rljob_operator.core.decision import Event
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import all_ready, pods


def settled(observed: Observed, status: RLJobStatus, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
    """Ready once every pod is, in an epoch that is open; Stalled no longer once a step was trained."""
    if status.training.step != observed.status.training.step and is_true(status, ConditionType.STALLED):
        message = f"step {status.training.step} was trained"
        status = with_condition(status, ConditionType.STALLED, now, true=False, reason="StepTrained", message=message)
    opened = status.restart.opened == status.restart.epoch
    ready = opened and all_ready(status)
    if ready == is_true(status, ConditionType.READY) and find(status, ConditionType.READY) is not None:
        return status, ()
    if not ready:
        message = "waiting for " + ", ".join(_not_ready(status)) if opened else "the epoch is not open yet"
        return with_condition(status, ConditionType.READY, now, true=False, reason="Starting", message=message), ()
    return _became_ready(status, now)


def _not_ready(status: RLJobStatus) -> list[str]:
    return [str(key) for key, pod in pods(status) if not pod.ready]


def _became_ready(status: RLJobStatus, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
    took = now - max(pod.ordered_at for _, pod in pods(status))
    message = f"every role is ready in epoch {status.restart.epoch}, {took:.2f} s after it was ordered"
    reason = Reason.READY.value
    status = with_condition(status, ConditionType.READY, now, true=True, reason=reason, message=message)
    if find(status, ConditionType.RESTARTING) is not None:
        status = with_condition(status, ConditionType.RESTARTING, now, true=False, reason=reason, message=message)
    return status, (Event(now, Reason.READY, message),)
