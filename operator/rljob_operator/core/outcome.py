"""What a verdict makes of the status, and the sentence that tells it. The only writer of the restart memory."""

from collections import Counter

from rljob_api.names import Epoch, Role, Scope
from rljob_api.status import ConditionType, PodStatus, RLJobStatus, RoleStatus
from rljob_api.wire.identity import PodKey
from rljob_operator.core.backoff import consecutive, delay_seconds
from rljob_operator.core.conditions import with_condition
from rljob_operator.core.decision import Event
from rljob_operator.core.identity import decision_id
from rljob_operator.core.observed import Observed, PodState
from rljob_operator.core.reasons import Reason
from rljob_operator.core.restart import remembered
from rljob_operator.core.roster import with_pods
from rljob_operator.core.verdicts import (
    Cause,
    Drain,
    Fail,
    Interrupt,
    RestartGlobal,
    RestartInPlace,
    Succeed,
    Verdict,
)

Outcome = tuple[RLJobStatus, tuple[Event, ...]]


def applied(observed: Observed, status: RLJobStatus, verdict: Verdict, now: float) -> Outcome:
    """The next status and the events of this verdict."""
    match verdict:
        case RestartGlobal():
            return _restarted(observed, status, verdict, now)
        case RestartInPlace():
            return _restarted_in_place(observed, status, verdict, now)
        case Fail():
            event = Event(now, verdict.reason, verdict.message, verdict.role)
            return _ended(status, ConditionType.FAILED, event)
        case Succeed():
            count = observed.num_rollouts
            message = f"all {count} rollouts are trained and version {count} is recorded"
            return _ended(status, ConditionType.SUCCEEDED, Event(now, Reason.SUCCEEDED, message))
        case Interrupt():
            return _ended(status, ConditionType.INTERRUPTED, Event(now, Reason.INTERRUPTED, verdict.message))
        case Drain():
            return _draining(status, now)


def replaced(observed: Observed, status: RLJobStatus, lost: list[Cause], now: float) -> RLJobStatus:
    """The lives of lost pods are given up, whatever else is decided.

    The next life gets an order that the lost one cannot have taken, before it is there to ask for one.
    """
    keys = {cause.pod for cause in lost}

    def change(key: PodKey, pod: PodStatus) -> PodStatus:
        if key not in keys:
            return pod
        fact = observed.fact(key)
        gone = fact.life if fact is not None and fact.state is PodState.EXITED else pod.life
        return pod.model_copy(
            update={
                "life": "",
                "lost_life": gone,
                "generation": pod.generation + 1,
                "ready": False,
                "ranks": [],
                "ordered_at": now,
            }
        )

    return with_pods(status, change) if keys else status


def _restarted(observed: Observed, status: RLJobStatus, verdict: RestartGlobal, now: float) -> Outcome:
    known = observed.coordinator.epoch if observed.coordinator is not None else Epoch(0)
    epoch = Epoch(max(status.restart.epoch, known) + 1)
    n = consecutive(status)
    delay = delay_seconds(observed.policy.backoff, n)
    restart = status.restart.model_copy(
        update={
            "epoch": epoch,
            "decision_id": decision_id(epoch, verdict.reason, verdict.ids),
            "global_restarts": status.restart.global_restarts + 1,
            "counted_towards_max": status.restart.counted_towards_max + (1 if verdict.counts else 0),
            "backoff_until": now + delay if delay > 0 else None,
            "scope": Scope.GLOBAL.value,
            "reason": verdict.message,
            "decided_at": now,
            "consecutive": n,
            "checkpoint": status.training.checkpoint,
        }
    )

    def anew(_: PodKey, pod: PodStatus) -> PodStatus:
        return pod.model_copy(update={"generation": 0, "ready": False, "ordered_at": now + delay})

    roles = [role.model_copy(update={"failures": 0, "failure_times": [], "ready": 0}) for role in status.roles]
    status = with_pods(status.model_copy(update={"restart": restart, "roles": roles}), anew)
    wait = f" after {delay:g} s" if delay > 0 else ""
    message = f"{verdict.message.rstrip('.')}; the job restarts in epoch {epoch}{wait}"
    status = _restarting(status, verdict.reason, message, now)
    if verdict.reason is Reason.STALLED:
        status = with_condition(
            status, ConditionType.STALLED, now, true=True, reason=verdict.reason.value, message=verdict.message
        )
    return status, (Event(now, verdict.reason, message, verdict.role, Scope.GLOBAL),)


def _restarted_in_place(observed: Observed, status: RLJobStatus, verdict: RestartInPlace, now: float) -> Outcome:
    failed = Counter(cause.pod.role for cause in verdict.causes)
    again = {cause.pod for cause in verdict.causes if not cause.lost}  # a lost one is replaced already

    def anew(key: PodKey, pod: PodStatus) -> PodStatus:
        if key not in again:
            return pod
        return pod.model_copy(update={"generation": pod.generation + 1, "ready": False, "ordered_at": now})

    roles = [_counted(observed, role, failed[role.name], now) for role in status.roles]
    message = "; ".join(cause.message for cause in verdict.causes)
    restart = status.restart.model_copy(update={"scope": Scope.IN_PLACE.value, "reason": message})
    status = with_pods(status.model_copy(update={"restart": restart, "roles": roles}), anew)
    status = _restarting(status, verdict.causes[0].reason, message, now)
    return status, tuple(_in_place_event(status, cause, now) for cause in verdict.causes)


def _counted(observed: Observed, role: RoleStatus, failed: int, now: float) -> RoleStatus:
    times = [*remembered(observed.policy, role.failure_times, now), *[now] * failed]
    return role.model_copy(update={"failures": len(times), "failure_times": times})


def _in_place_event(status: RLJobStatus, cause: Cause, now: float) -> Event:
    role: Role = cause.pod.role
    count = next(entry.failures for entry in status.roles if entry.name == role)
    nth = f"failure {count} of {role} since the last global restart"
    message = f"{cause.message.rstrip('.')}; {cause.pod} restarts in place ({nth})"
    return Event(now, cause.reason, message, role, Scope.IN_PLACE)


def _restarting(status: RLJobStatus, reason: Reason, message: str, now: float) -> RLJobStatus:
    status = with_condition(status, ConditionType.READY, now, true=False, reason="Restarting", message=message)
    return with_condition(status, ConditionType.RESTARTING, now, true=True, reason=reason.value, message=message)


def _ended(status: RLJobStatus, kind: ConditionType, event: Event) -> Outcome:
    reason, message, now = event.reason.value, event.message, event.time
    for other in (ConditionType.READY, ConditionType.RESTARTING):
        status = with_condition(status, other, now, true=False, reason=reason, message=message)
    return with_condition(status, kind, now, true=True, reason=reason, message=message), (event,)


def _draining(status: RLJobStatus, now: float) -> Outcome:
    if any(condition.type is ConditionType.INTERRUPTED for condition in status.conditions):
        return status, ()
    event = Event(now, Reason.DRAINING, "interrupted: the actor saves, then everything stops")
    kind, reason = ConditionType.INTERRUPTED, event.reason.value
    return with_condition(status, kind, now, true=False, reason=reason, message=event.message), (event,)
