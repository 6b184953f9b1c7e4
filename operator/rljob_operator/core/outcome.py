"""What a verdict makes of the status, and the event for it. The only writer of the restart memory. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from rljob_api.names import Epoch, Role, Scope
from rljob_api.spec.restart import BackoffSpec, Mechanism
from rljob_api.status import ConditionType, PodStatus, RLJobStatus, RoleStatus
from rljob_api.times import seconds
from rljob_api.wire.identity import PodKey
from rljob_operator.core.conditions import find, is_draining, with_condition, without
from rljob_operator.core.decision import (
    Cause,
    Drain,
    Event,
    Fail,
    Interrupt,
    RestartGlobal,
    RestartInPlace,
    Step,
    Succeed,
    Suspend,
    Verdict,
    decision_id,
)
from rljob_operator.core.drain import saves
from rljob_operator.core.membership import resized, with_pods, without_incarnation
from rljob_operator.core.notices import end_of, restarts_in
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason, shortened
from rljob_operator.core.restart import remembered


def applied(observed: Observed, status: RLJobStatus, verdict: Verdict, now: float) -> Step:
    """The next status and the events of this verdict."""
    match verdict:
        case RestartGlobal():
            return _restarted(observed, status, verdict, now)
        case RestartInPlace():
            return _restarted_in_place(observed, status, verdict, now)
        case Fail():
            event = Event(now, verdict.reason, verdict.message, verdict.role)
            return ended(status, ConditionType.FAILED, event)
        case Succeed(stop) if stop is not None:
            message = f"{stop.message}; version {stop.version} is recorded"
            return ended(status, ConditionType.SUCCEEDED, Event(now, Reason.STOP_CONDITION_MET, message))
        case Succeed():
            count = observed.num_rollouts
            message = f"all {count} rollouts are trained and version {count} is recorded"
            return ended(status, ConditionType.SUCCEEDED, Event(now, Reason.SUCCEEDED, message))
        case Interrupt():
            return ended(status, ConditionType.INTERRUPTED, Event(now, Reason.INTERRUPTED, verdict.message))
        case Drain():
            return _draining(status, verdict, now)
        case Suspend():
            return _suspended(status, verdict, now)


def replaced(observed: Observed, status: RLJobStatus, lost: Iterable[Cause], now: float) -> RLJobStatus:
    """The incarnations of lost pods are given up, whatever else is decided: each gets its next order at once."""
    keys = {cause.pod for cause in lost}

    def change(key: PodKey, pod: PodStatus) -> PodStatus:
        return without_incarnation(pod, observed.facts.get(key), now) if key in keys else pod

    return with_pods(status, change) if keys else status


def _restarted(observed: Observed, status: RLJobStatus, verdict: RestartGlobal, now: float) -> Step:
    known = observed.coordinator.epoch if observed.coordinator is not None else Epoch(0)
    epoch = Epoch(max(status.restart.epoch, known) + 1)
    n = status.restart.consecutive if verdict.by_user else _consecutive(status, now)
    delay = 0.0 if verdict.by_user else _delay_seconds(observed.policy.backoff, n, counts=verdict.counts)
    restart = status.restart.model_copy(
        update={
            "epoch": epoch,
            "decision_id": decision_id(epoch, verdict.reason, verdict.ids),
            "global_restarts": status.restart.global_restarts + 1,
            "counted_towards_max": status.restart.counted_towards_max + (1 if verdict.counts else 0),
            "backoff_until": now + delay if delay > 0 else None,
            "scope": Scope.GLOBAL.value,
            "reason": verdict.reason.value,
            "message": shortened(verdict.message),
            "decided_at": now,
            "consecutive": n,
            "checkpoint": status.restart.checkpoint if verdict.by_user else status.training.checkpoint,
            "opened_at": None,
            "revision": observed.request.revision,
            "releasing": status.restart.releasing or verdict.releases,
            "handled_request": _asked(observed) or status.restart.handled_request,
        }
    )
    late = {cause.pod for cause in verdict.causes if cause.unregistered and not cause.lost}  # a lost one is replaced

    def restarted(key: PodKey, pod: PodStatus) -> PodStatus:
        again = pod.model_copy(update={"generation": 0, "ready": False})
        again = _recreated(observed, key, again, now, everything=verdict.releases)
        again = again.model_copy(update={"ordered_at": now + delay})
        return again.model_copy(update={"unregistered": pod.unregistered + (key in late)})

    roles = [role.model_copy(update={"failures": 0, "failure_times": []}) for role in status.roles]
    roles = [_without_joined(observed, role, everything=verdict.releases) for role in roles]
    status = resized(status.model_copy(update={"restart": restart, "roles": roles}), observed.first_replicas, now)
    status = with_pods(status, restarted)
    wait = f" after {delay:g} s" if delay > 0 else ""
    message = restarts_in(epoch, verdict.message, wait)
    status = _restarting(status, verdict.reason, message, now)
    if verdict.reason is Reason.STALLED:
        status = with_condition(
            status, ConditionType.STALLED, now, true=True, reason=verdict.reason, message=verdict.message
        )
    once = status.restart.decision_id
    return status, (Event(now, verdict.reason, message, verdict.role, Scope.GLOBAL, once),)


LIVED_SECONDS = 600.0
"""A job that was Ready for so long has no cause that ends it at once: what comes now is the first of its row."""


def _consecutive(status: RLJobStatus, now: float) -> int:
    """The n of the global restart that is being decided: 1 again once the epoch before has saved, or has lived."""
    ready = find(status, ConditionType.READY)
    is_ready = ready is not None and ready.status == "True"
    has_lived = ready is not None and is_ready and now - seconds(ready.last_transition_time) >= LIVED_SECONDS
    return 1 if has_recorded(status) or has_lived else status.restart.consecutive + 1


def has_recorded(status: RLJobStatus) -> bool:
    """Whether a checkpoint was recorded after the last global restart."""
    recorded, before = status.training.checkpoint, status.restart.checkpoint
    return recorded is not None and (before is None or recorded > before)


AT_ONCE = 2
"""Restarts in a row without a delay where the spec gives none: most causes are over with the first."""


FIRST_DELAY_SECONDS = 5.0
"""Then; a pod that dies as it starts would use up maxGlobalRestarts within a minute."""


def _delay_seconds(spec: BackoffSpec, n: int, *, counts: bool) -> float:
    """The delay of the n-th restart in a row: initialSeconds * factor^(n - 1), at most maxSeconds."""
    first, before = (FIRST_DELAY_SECONDS, AT_ONCE) if spec.initial_seconds is None else (spec.initial_seconds, 0)
    if first == 0 or n <= before or (spec.initial_seconds is None and not counts):
        return 0.0
    # A float overflows at factor^1024; the limit is reached long before n is that large.
    exponent = min(n - before - 1, 256)
    return float(min(spec.max_seconds, first * spec.factor**exponent))


def _without_joined(observed: Observed, role: RoleStatus, *, everything: bool) -> RoleStatus:
    """`role` without those that have joined a gang beyond what it needs, and have no place (or, everything, are to go).

    A restart waits for every member: for these it might wait in vain. They join again when the job runs.
    """
    members = list(role.pods)
    while len(members) > observed.required.get(role.name, len(members)):
        fact = observed.facts.get(PodKey(role=role.name, replica=len(members) - 1))
        if not everything and fact is not None and fact.placed:
            break
        members.pop()
    return role.model_copy(update={"pods": members})


def _restarted_in_place(observed: Observed, status: RLJobStatus, verdict: RestartInPlace, now: float) -> Step:
    failed = Counter(cause.pod.role for cause in verdict.causes if cause.counts)
    again = {cause.pod: cause for cause in verdict.causes if not cause.lost}  # a lost one is replaced already

    def restarted(key: PodKey, pod: PodStatus) -> PodStatus:
        if key not in again:
            return pod
        begun = pod.model_copy(update={"generation": pod.generation + 1, "ready": False, "ordered_at": now})
        begun = _recreated(observed, key, begun, now)
        return begun.model_copy(update={"unregistered": pod.unregistered + again[key].unregistered})

    roles = [_counted(observed, role, failed[role.name], now) for role in status.roles]
    message = shortened("; ".join(dict.fromkeys(cause.message for cause in verdict.causes)))
    handled = verdict.request or status.restart.handled_request
    reason = verdict.causes[0].reason
    update = {"scope": Scope.IN_PLACE.value, "reason": reason.value, "message": message, "handled_request": handled}
    restart = status.restart.model_copy(update=update)
    status = with_pods(status.model_copy(update={"restart": restart, "roles": roles}), restarted)
    status = _restarting(status, reason, message, now)
    return status, tuple(_in_place_event(status, cause, now) for cause in verdict.causes)


def _counted(observed: Observed, role: RoleStatus, failed: int, now: float) -> RoleStatus:
    times = [*remembered(observed.policy, role.failure_times, now), *[now] * failed]
    return role.model_copy(update={"failures": len(times), "failure_times": times})


def _in_place_event(status: RLJobStatus, cause: Cause, now: float) -> Event:
    role: Role = cause.pod.role
    count = next(entry.failures for entry in status.roles if entry.name == role)
    nth = f"failure {count} of {role} since the last global restart" if cause.counts else "not counted"
    message = f"{cause.message.rstrip('.')}; {cause.pod} restarts in place ({nth})"
    return Event(now, cause.reason, message, role, Scope.IN_PLACE)


def _restarting(status: RLJobStatus, reason: Reason, message: str, now: float) -> RLJobStatus:
    status = with_condition(status, ConditionType.READY, now, true=False, reason="Restarting", message=message)
    return with_condition(status, ConditionType.RESTARTING, now, true=True, reason=reason, message=message)


def ended(status: RLJobStatus, kind: ConditionType, event: Event) -> Step:
    """The status of a job that is over."""
    reason, message, now = event.reason, event.message, event.time
    for other in (ConditionType.READY, ConditionType.RESTARTING):
        status = with_condition(status, other, now, true=False, reason=reason, message=message)
    status = status.model_copy(update={"ended_at": now})
    event = replace(event, once=end_of(status))
    return with_condition(status, kind, now, true=True, reason=reason, message=message), (event,)


def _recreated(observed: Observed, key: PodKey, pod: PodStatus, now: float, *, everything: bool = False) -> PodStatus:
    """With mechanism Recreate every restart replaces the whole pod."""
    if not pod.incarnation or not (everything or observed.policy.mechanism is Mechanism.RECREATE):
        return pod
    return without_incarnation(pod, observed.facts.get(key), now)


def _asked(observed: Observed) -> str:
    """A restart of everything is what any request asked for."""
    return observed.request.restart_request.id if observed.request.restart_request is not None else ""


def _draining(status: RLJobStatus, drain: Drain, now: float) -> Step:
    if is_draining(status):
        return status, ()
    before = drain.before
    event = Event(now, Reason.DRAINING, f"{drain.why}: {saves(status)}, then everything stops")
    reason, message = event.reason, event.message
    status = without(status, (before,))  # its time is the beginning of this drain
    return with_condition(status, before, now, true=False, reason=reason, message=message), (event,)


def _suspended(status: RLJobStatus, verdict: Suspend, now: float) -> Step:
    """Nothing is wanted any more until that is taken back. Time that passes from here on is not run time."""
    recorded = status.training.checkpoint
    point = "from its beginning" if not recorded else f"from checkpoint {recorded}"
    event = Event(now, verdict.reason, f"{verdict.message}; the job is suspended and will go on {point}")
    reason, message = event.reason, event.message
    for other in (ConditionType.READY, ConditionType.RESTARTING, ConditionType.STALLED):
        if find(status, other) is not None:
            status = with_condition(status, other, now, true=False, reason=reason, message=message)

    def gone(_: PodKey, pod: PodStatus) -> PodStatus:
        lost = pod.incarnation or pod.lost_incarnation
        return pod.model_copy(
            update={"incarnation": "", "lost_incarnation": lost, "ready": False, "ranks": [], "draining": False}
        )

    ran = now - status.started_at if status.started_at is not None else 0.0
    update = {"active_seconds": status.active_seconds + ran, "started_at": None}
    status = with_pods(status.model_copy(update=update), gone)
    kind = ConditionType.SUSPENDED
    return with_condition(status, kind, now, true=True, reason=reason, message=message), (event,)
