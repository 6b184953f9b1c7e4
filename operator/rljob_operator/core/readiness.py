"""Readiness: conditions that follow from what is seen, not from a decision."""

from rljob_api.role_traits import TRAITS
from rljob_api.status import Condition, ConditionType, RLJobStatus
from rljob_operator.core.conditions import UNKNOWN, find, is_true, was_well, with_condition, with_unknown
from rljob_operator.core.decision import Event
from rljob_operator.core.infrastructure import is_away
from rljob_operator.core.observed import Observed, Obstacle, Silence
from rljob_operator.core.progress import has_advanced
from rljob_operator.core.reach import is_blind
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import all_ready, staying
from rljob_operator.core.scaling import is_scaling
from rljob_operator.core.waits import waited_for

STARTING = "Starting"
"""Reason of Ready=False as long as nothing else is known."""


def settled(observed: Observed, status: RLJobStatus, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
    """Ready once every pod is, in an epoch that is open; Stalled no longer once a step was trained."""
    if has_advanced(observed.status.training.step, status.training.step) and is_true(status, ConditionType.STALLED):
        message = f"step {status.training.step} was trained"
        status = with_condition(status, ConditionType.STALLED, now, true=False, reason="StepTrained", message=message)
    old = find(status, ConditionType.READY)
    away = is_away(observed.infrastructure, now, observed.policy.heartbeat_timeout_seconds)
    blind = observed.silence if is_blind(observed, status, now) else None
    ready = status.restart.opened == status.restart.epoch and all_ready(status)
    if ready and not away and blind is None:
        return (status, ()) if old is not None and old.status == "True" else _became_ready(status, now)
    if blind is not None and blind.reason is not Reason.INFRASTRUCTURE_DOWN:
        return _unseen(observed, status, blind, now), ()
    if old is not None and old.status == "False" and not observed.scales:
        return status, ()
    wait = waited_for(observed, status, now)
    why = Reason.INFRASTRUCTURE_DOWN.value if ready else _why_not_ready(observed, status, old, wait)
    return with_condition(status, ConditionType.READY, now, true=False, reason=why, message=wait.sentence), ()


def _why_not_ready(observed: Observed, status: RLJobStatus, old: Condition | None, wait: Obstacle) -> str:
    """Replicas that join do not take the job back to its start."""
    joining = all(TRAITS[key.role].is_scalable for key, pod in staying(status) if not pod.ready)
    if observed.scales and old is not None and (was_well(status) or is_scaling(status)) and joining:
        return Reason.SCALING.value
    return wait.reason or ("Restarting" if is_true(status, ConditionType.RESTARTING) else STARTING)


def _unseen(observed: Observed, status: RLJobStatus, silence: Silence, now: float) -> RLJobStatus:
    """Nobody knows how a job is that was well. One that was not is none the better for it."""
    why = silence.reason.value
    if is_scaling(status) or was_well(status):
        return with_unknown(status, ConditionType.READY, now, reason=why, message=silence.message)
    message = f"{waited_for(observed, status, now).sentence}; {silence.message}"
    return with_condition(status, ConditionType.READY, now, true=False, reason=why, message=message)


def _became_ready(status: RLJobStatus, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
    took = now - max(pod.ordered_at for _, pod in staying(status))
    message = f"every role is ready in epoch {status.restart.epoch}, {took:.2f} s after it was ordered"
    old, reason = find(status, ConditionType.READY), Reason.READY.value
    if old is not None and old.status == UNKNOWN:
        message = f"every role is ready in epoch {status.restart.epoch}, and the coordinator answers again"
        reason = Reason.COORDINATOR_REACHABLE.value
    elif old is not None and old.reason == Reason.INFRASTRUCTURE_DOWN:
        message = f"every role is ready in epoch {status.restart.epoch}, and the infrastructure runs again"
        reason = Reason.INFRASTRUCTURE_RESTARTED.value
    status = with_condition(status, ConditionType.READY, now, true=True, reason=reason, message=message)
    if find(status, ConditionType.RESTARTING) is not None:
        status = with_condition(status, ConditionType.RESTARTING, now, true=False, reason=reason, message=message)
    return status, (Event(now, Reason.READY, message),)
