"""Readiness: conditions that follow from what is seen, not from a decision."""

from rljob_api.role_traits import TRAITS
from rljob_api.status import Condition, ConditionType, RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_operator.core.conditions import find, is_true, with_condition
from rljob_operator.core.decision import Event
from rljob_operator.core.infrastructure import down, is_away
from rljob_operator.core.observed import Observed, PodState
from rljob_operator.core.opening import held
from rljob_operator.core.progress import has_advanced
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import all_ready, staying
from rljob_operator.core.scaling import is_scaling
from rljob_operator.core.wording import last_line

STARTING = "Starting"
"""Reason of Ready=False as long as nothing else is known."""


def settled(observed: Observed, status: RLJobStatus, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
    """Ready once every pod is, in an epoch that is open; Stalled no longer once a step was trained."""
    if has_advanced(observed.status.training.step, status.training.step) and is_true(status, ConditionType.STALLED):
        message = f"step {status.training.step} was trained"
        status = with_condition(status, ConditionType.STALLED, now, true=False, reason="StepTrained", message=message)
    old = find(status, ConditionType.READY)
    away = is_away(observed.infrastructure, now, observed.policy.heartbeat_timeout_seconds)
    ready = status.restart.opened == status.restart.epoch and all_ready(status)
    if ready and not away:
        return (status, ()) if old is not None and old.status == "True" else _became_ready(status, now)
    if old is not None and old.status == "False" and not observed.on_cluster:
        return status, ()
    message = _waits_for(observed, status, now)
    why = Reason.INFRASTRUCTURE_DOWN.value if ready else _why_not_ready(observed, status, old)
    return with_condition(status, ConditionType.READY, now, true=False, reason=why, message=message), ()


def _why_not_ready(observed: Observed, status: RLJobStatus, old: Condition | None) -> str:
    """Replicas that join do not take the job back to its start."""
    was_well = old is not None and (old.status == "True" or is_scaling(status))
    joining = all(TRAITS[key.role].is_scalable for key, pod in staying(status) if not pod.ready)
    if observed.on_cluster and was_well and joining:
        return Reason.SCALING.value
    said = [process.reason for process in observed.infrastructure if process.reason]
    kept = [fact for key, pod in staying(status) if not pod.ready and (fact := observed.fact(key)) is not None]
    said += [fact.reason for fact in kept if fact.state is PodState.PENDING and fact.reason]
    if said:
        return said[0]
    return "Restarting" if is_true(status, ConditionType.RESTARTING) else STARTING


def _waits_for(observed: Observed, status: RLJobStatus, now: float) -> str:
    if status.restart.opened < status.restart.epoch:
        why = held(observed, status, now) if observed.on_cluster else None
        return "the epoch is not open yet" + (f": {why}" if why else "") + _pending(observed, status)
    waiting = [_named(observed, key) for key, pod in staying(status) if not pod.ready]
    return "waiting for " + ", ".join([*down(observed.infrastructure), *waiting])


def _pending(observed: Observed, status: RLJobStatus) -> str:
    waiting = down(observed.infrastructure)
    waiting += [name for key, pod in staying(status) if (name := _named(observed, key)) != str(key)]
    return f"; waiting for {', '.join(waiting)}" if waiting else ""


def _named(observed: Observed, key: PodKey) -> str:
    """A pod, and what its platform says of why it does not run."""
    fact = observed.fact(key)
    said = last_line(fact.last_words) if fact is not None and fact.state is PodState.PENDING else ""
    return f"{key} ({said})" if said else str(key)


def _became_ready(status: RLJobStatus, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
    took = now - max(pod.ordered_at for _, pod in staying(status))
    message = f"every role is ready in epoch {status.restart.epoch}, {took:.2f} s after it was ordered"
    old, reason = find(status, ConditionType.READY), Reason.READY.value
    if old is not None and old.reason == Reason.INFRASTRUCTURE_DOWN:
        message = f"every role is ready in epoch {status.restart.epoch}, and the infrastructure runs again"
        reason = Reason.INFRASTRUCTURE_RESTARTED.value
    status = with_condition(status, ConditionType.READY, now, true=True, reason=reason, message=message)
    if find(status, ConditionType.RESTARTING) is not None:
        status = with_condition(status, ConditionType.RESTARTING, now, true=False, reason=reason, message=message)
    return status, (Event(now, Reason.READY, message),)
