"""Readiness: when a decided epoch may open, what the job waits for, when it is Ready, and when it is too late.

Every blocker of a job has its reason and sentence here (`waited_for`): one that is missing is a silent wait. The
start-up deadline counts one spell without Ready as one, over all restarts in it: a job that is evicted before it is
Ready holds devices for nothing, too. Pure.
"""

from collections.abc import Iterator
from itertools import groupby

from rljob_api.roles import TRAITS
from rljob_api.status import Condition, ConditionType, RLJobStatus
from rljob_api.times import seconds
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import ServerState
from rljob_operator.core.conditions import (
    UNKNOWN,
    find,
    is_scaling,
    is_true,
    was_ready,
    with_condition,
    with_unknown,
)
from rljob_operator.core.decision import Event, Fail, Step
from rljob_operator.core.drain import saves, saves_first, stopping
from rljob_operator.core.infrastructure import down, is_away
from rljob_operator.core.membership import all_ready, pods, remaining
from rljob_operator.core.observed import Blocker, NoContact, Observed, PodState
from rljob_operator.core.progress import has_advanced
from rljob_operator.core.reachability import contact_since, is_out_of_contact
from rljob_operator.core.reasons import Reason, last_line


def held(observed: Observed, status: RLJobStatus, now: float) -> Blocker | None:
    """Why the epoch is not opened now, or None.

    What the epoch starts must stay: pods that an update or a smaller role takes away go first.
    """
    until = status.restart.backoff_until
    if until is not None and now < until:
        delay = until - (status.restart.decided_at or 0.0)
        sentence = f"it is opened {round(delay, 1):g} s after it was decided (restartPolicy.backoff)"
        return Blocker(Reason.BACKING_OFF, sentence)
    if saves_first(observed, status, now):
        return Blocker(Reason.DRAINING, f"{saves(status)} first")
    if observed.request.outdated:
        return Blocker(Reason.PODS_LEAVING, "pods of an older template are still there")
    members = {key for key, _ in pods(status)}
    over = [str(fact.pod) for fact in observed.pods if fact.pod not in members and fact.state is not PodState.EXITED]
    if not observed.on_cluster or not over:
        return None
    return Blocker(Reason.PODS_LEAVING, f"no longer wanted and still there: {', '.join(over)}")


_BESIDE_ANOTHER = "didn't match pod affinity rules"


_SHORTAGE = "Insufficient "
"""From messages of Kubernetes' scheduler."""


def waited_for(observed: Observed, status: RLJobStatus, now: float) -> Blocker:
    """The first reason of a blocker ("": only time is waited for), and a sentence of all that is waited for."""
    if status.restart.opened < status.restart.epoch:
        why = _why_not_open(observed, status, now)
        sentence = "the epoch is not open yet" + (f": {why.sentence}" if why else "")
        named = _causes_first([*_down(observed), *_named(observed, status, only_explained=True)])
        sentence += f"; waiting for {', '.join(named)}" if named else ""
    else:
        why = None
        sentence = "waiting for " + ", ".join(_causes_first([*_down(observed), *_named(observed, status)]))
    found = sorted(_blockers(observed, status), key=lambda each: _follows(each.sentence))
    blockers = [*observed.blockers, *found, *([why] if why else [])]
    sentence = "; ".join([sentence, *(each.sentence for each in observed.blockers)])
    return Blocker(next((each.reason for each in blockers if each.reason), ""), sentence)


def _causes_first(named: list[str]) -> list[str]:
    return sorted(named, key=_follows)


def _follows(sentence: str) -> bool:
    """Whether a pod waits only until another has a node: what blocks the other one is the cause of both."""
    return _BESIDE_ANOTHER in sentence and _SHORTAGE not in sentence


def _down(observed: Observed) -> list[str]:
    """Infrastructure that does not run. There may be no pod of the coordinator that could report this."""
    found, no_contact = down(observed.infrastructure), observed.no_contact
    is_down = no_contact is not None and no_contact.reason is Reason.INFRASTRUCTURE_DOWN
    return [no_contact.message] if no_contact is not None and is_down and not found else found


def _why_not_open(observed: Observed, status: RLJobStatus, now: float) -> Blocker | None:
    if not observed.on_cluster:
        return None
    why = held(observed, status, now)
    coordinator = observed.coordinator
    if why is None and coordinator is not None and coordinator.server is ServerState.OPENING:
        return Blocker(Reason.CONTROL_STATE_OPENING, "the coordinator reads the control state")
    return why


def _blockers(observed: Observed, status: RLJobStatus) -> Iterator[Blocker]:
    """Of infrastructure and pods, in this order: no pod can report anything without the infrastructure."""
    for process in observed.infrastructure:
        yield Blocker(process.reason, process.waits_for)
    for key, pod in remaining(status):
        if not pod.ready and (why := _why(observed, key)) is not None:
            yield why


def _why(observed: Observed, key: PodKey) -> Blocker | None:
    """The blocker that its platform reports of a pod that does not run, or is not there."""
    fact = observed.facts.get(key)
    if fact is None:
        return observed.unmade.get(key.role)
    return Blocker(fact.reason, last_line(fact.last_message)) if fact.state is PodState.PENDING else None


def _named(observed: Observed, status: RLJobStatus, *, only_explained: bool = False) -> Iterator[str]:
    """Pods that are not ready, each with its sentence; neighbours with the same sentence have it once."""
    waiting = [key for key, pod in remaining(status) if not pod.ready]
    for sentence, keys in groupby(waiting, lambda key: why.sentence if (why := _why(observed, key)) else ""):
        if sentence:
            yield f"{' and '.join(map(str, keys))} ({sentence})"
        elif not only_explained:
            yield from map(str, keys)


STARTING = "Starting"
"""Reason of Ready=False as long as nothing else is known."""


def settled(observed: Observed, status: RLJobStatus, now: float) -> Step:
    """Ready once every pod is, in an epoch that is open; Stalled no longer once a step was trained."""
    if has_advanced(observed.status.training.step, status.training.step) and is_true(status, ConditionType.STALLED):
        message = f"step {status.training.step} was trained"
        status = with_condition(status, ConditionType.STALLED, now, true=False, reason="StepTrained", message=message)
    old = find(status, ConditionType.READY)
    away = is_away(observed.infrastructure, now, observed.policy.heartbeat_timeout_seconds)
    blind = observed.no_contact if is_out_of_contact(observed, status, now) else None
    ready = status.restart.opened == status.restart.epoch and all_ready(status)
    if ready and not away and blind is None:
        return (status, ()) if old is not None and old.status == "True" else _became_ready(status, now)
    if blind is not None and blind.reason is not Reason.INFRASTRUCTURE_DOWN:
        return _unseen(observed, status, blind, now), ()
    if old is not None and old.status == "False" and not observed.scales:
        return status, ()
    wait = waited_for(observed, status, now)
    why = Reason.INFRASTRUCTURE_DOWN if ready else _why_not_ready(observed, status, old, wait)
    return with_condition(status, ConditionType.READY, now, true=False, reason=why, message=wait.sentence), ()


def _why_not_ready(observed: Observed, status: RLJobStatus, old: Condition | None, wait: Blocker) -> str:
    """Replicas that join do not take the job back to its start."""
    joining = all(TRAITS[key.role].is_scalable for key, pod in remaining(status) if not pod.ready)
    if observed.scales and old is not None and (was_ready(status) or is_scaling(status)) and joining:
        return Reason.SCALING
    return wait.reason or ("Restarting" if is_true(status, ConditionType.RESTARTING) else STARTING)


def _unseen(observed: Observed, status: RLJobStatus, no_contact: NoContact, now: float) -> RLJobStatus:
    """Whether a job that was Ready still is, is Unknown. One that was not stays not Ready."""
    why = no_contact.reason
    if is_scaling(status) or was_ready(status):
        return with_unknown(status, ConditionType.READY, now, reason=why, message=no_contact.message)
    message = f"{waited_for(observed, status, now).sentence}; {no_contact.message}"
    return with_condition(status, ConditionType.READY, now, true=False, reason=why, message=message)


def _became_ready(status: RLJobStatus, now: float) -> Step:
    took = now - max(pod.ordered_at for _, pod in remaining(status))
    message = f"every role is ready in epoch {status.restart.epoch}, {took:.2f} s after it was ordered"
    old, reason = find(status, ConditionType.READY), Reason.READY
    if old is not None and old.status == UNKNOWN:
        message = f"every role is ready in epoch {status.restart.epoch}, and the coordinator answers again"
        reason = Reason.COORDINATOR_REACHABLE
    elif old is not None and old.reason == Reason.INFRASTRUCTURE_DOWN:
        message = f"every role is ready in epoch {status.restart.epoch}, and the infrastructure runs again"
        reason = Reason.INFRASTRUCTURE_RESTARTED
    status = with_condition(status, ConditionType.READY, now, true=True, reason=reason, message=message)
    if find(status, ConditionType.RESTARTING) is not None:
        status = with_condition(status, ConditionType.RESTARTING, now, true=False, reason=reason, message=message)
    return status, (Event(now, Reason.READY, message),)


def too_late(observed: Observed, status: RLJobStatus, now: float) -> Fail | None:
    """The failure of a job that was not Ready in time. Names what it waited for."""
    at = too_late_at(observed, status)
    if at is None or now < at or stopping(observed, status) or _may_be_ready(observed, status, now):
        return None
    limit, wait = observed.request.startup_deadline_seconds, waited_for(observed, status, now)
    why = f"{wait.reason}: {wait.sentence}" if wait.reason else wait.sentence
    message = f"the job has not been Ready for startupDeadlineSeconds ({limit} s): {why}"
    return Fail(Reason.STARTUP_DEADLINE_EXCEEDED, message)


def too_late_at(observed: Observed, status: RLJobStatus) -> float | None:
    """Unix time at which the job will not have been Ready for too long; None: never."""
    limit = observed.request.startup_deadline_seconds
    if limit is None or status.waiting_since is None:
        return None
    ready = find(status, ConditionType.READY)
    # An earlier version of the operator leaves `waiting_since` as it finds it, and keeps the condition's time.
    unready = seconds(ready.last_transition_time) if ready is not None and ready.status == "False" else 0.0
    begun = max(status.waiting_since, status.started_at or 0.0, status.restart.backoff_until or 0.0)
    return max(begun, unready, contact_since(status)) + limit


def _may_be_ready(observed: Observed, status: RLJobStatus, now: float) -> bool:
    """Whether all may be well in an open epoch: its coordinator runs, as far as is observed, and does not answer."""
    if observed.coordinator is not None or status.restart.opened < status.restart.epoch:
        return False
    return not is_away(observed.infrastructure, now, observed.policy.heartbeat_timeout_seconds)
