"""Fields of the status that follow from the rest: phase, reason, `waiting_since`, Progressing, scale, claim, trackers.

`decide` writes them last. `with_lost_contact` is for a job that is held back without a decision because its
coordinator must not be asked. Pure.
"""

from rljob_api.roles import SCALED_ROLE
from rljob_api.status import Condition, ConditionType, Phase, RLJobStatus, ScalingStatus
from rljob_operator.core.conditions import (
    find,
    is_draining,
    is_queue_draining,
    is_scaling,
    is_true,
    is_unknown,
    is_without_infrastructure,
    rests,
    terminal,
    was_ready,
    with_condition,
    with_unknown,
    without,
)
from rljob_operator.core.ends import is_over
from rljob_operator.core.membership import counted, scaled_role, with_pods
from rljob_operator.core.observed import NoContact, Observed
from rljob_operator.core.queue import with_admitted
from rljob_operator.core.reachability import lasts
from rljob_operator.core.readiness import STARTING
from rljob_operator.core.reasons import Reason

EXPANDED, EXPANDING, REFUSED = "Expanded", "Expanding", "ExpansionRefused"
"""Reasons of the condition."""

FED = "Fed"
"""Reason of TrackersFed while it is true."""


def with_volume(observed: Observed, status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` with what became of a larger `checkpoint.volume.size`; unchanged where it never became larger."""
    fact, kind = observed.volume, ConditionType.VOLUME_EXPANDED
    if fact is None:
        return status
    if fact.refusal:
        message = (
            f"checkpoint.volume.size: the claim {fact.claim} stays at {fact.size}, since the API server refuses "
            f"{fact.wanted}: {fact.refusal}. It is asked for again every minute, and the job goes on; its storage "
            "class has to have allowVolumeExpansion"
        )
        return with_condition(status, kind, now, true=False, reason=REFUSED, message=message)
    if fact.capacity is not None and not fact.is_large_enough:
        why = f": {fact.platform_message}" if fact.platform_message else ""
        message = f"the volume of the claim {fact.claim} has {fact.capacity}, and is to have {fact.size}{why}"
        return with_condition(status, kind, now, true=False, reason=EXPANDING, message=message)
    if find(status, kind) is None:
        return status
    message = f"the volume of the claim {fact.claim} has {fact.capacity or fact.size}"
    return with_condition(status, kind, now, true=True, reason=EXPANDED, message=message)


def with_trackers(observed: Observed, status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` with whether all trackers are fed. The condition comes, and changes, once all run or one cannot.

    It keeps nothing of the job waiting: readiness and phase do not look at it.
    """
    facts, kind = observed.trackers, ConditionType.TRACKERS_FED
    if facts is None:
        return status if find(status, kind) is None else without(status, [kind])
    failing = [fact for fact in facts if fact.trouble]
    if failing:
        message = " ".join(fact.sentence for fact in failing)
        return with_condition(status, kind, now, true=False, reason=failing[0].reason, message=message)
    if not facts or not all(fact.runs for fact in facts):
        return status
    message = f"the processes of {', '.join(fact.tracker for fact in facts)} run"
    return with_condition(status, kind, now, true=True, reason=FED, message=message)


_PHASES = {
    ConditionType.SUCCEEDED: Phase.SUCCEEDED,
    ConditionType.FAILED: Phase.FAILED,
    ConditionType.INTERRUPTED: Phase.INTERRUPTED,
    ConditionType.SUSPENDED: Phase.SUSPENDED,
    ConditionType.STALLED: Phase.STALLED,
    ConditionType.RESTARTING: Phase.RESTARTING,
    ConditionType.READY: Phase.RUNNING,
}
"""In order of precedence."""


def with_derived(observed: Observed, status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` with every field that follows from its other fields."""
    status = with_volume(observed, _with_waiting_since(status, now), now)
    status = with_admitted(observed.queue, with_trackers(observed, status, now), now)
    status = with_cluster_status(observed, status, now)
    return status.model_copy(update={"phase": _phase(status), "reason": _reason(status)})


def _first_true(status: RLJobStatus) -> Condition | None:
    """The condition that phase and reason follow from."""
    true = {condition.type: condition for condition in status.conditions if condition.status == "True"}
    return next((true[kind] for kind in _PHASES if kind in true), None)


def _phase(status: RLJobStatus) -> Phase:
    first = _first_true(status)
    if is_draining(status) and not rests(status):
        return Phase.DRAINING
    if first is not None:
        return _PHASES[ConditionType(first.type)]
    if is_unknown(status, ConditionType.READY):
        return Phase.UNKNOWN
    if is_scaling(status) or is_without_infrastructure(status):
        return Phase.RUNNING
    return Phase.STARTING if status.restart.epoch > 0 else Phase.PENDING


def _reason(status: RLJobStatus) -> str:
    """Why it has ended, is suspended, stalls, restarts or waits for something; else why it was restarted last."""
    first = _first_true(status)
    if first is not None and first.type != ConditionType.READY:
        return first.reason
    if is_queue_draining(status):
        return Reason.QUEUE_DRAINING.value
    accepted, ready = find(status, ConditionType.ACCEPTED), find(status, ConditionType.READY)
    if accepted is not None and accepted.status == "False":
        return accepted.reason
    if ready is not None and ready.status != "True" and ready.reason != STARTING:
        return ready.reason
    return status.restart.reason or ""


def _with_waiting_since(status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` with the time since which the job waits."""
    waits = status.restart.epoch > 0 and not (rests(status) or was_ready(status) or is_scaling(status))
    since = (status.waiting_since or now) if waits else None
    return status if since == status.waiting_since else status.model_copy(update={"waiting_since": since})


def with_lost_contact(status: RLJobStatus, no_contact: NoContact, limit_seconds: float, now: float) -> RLJobStatus:
    """`status` of a job that was Ready and whose coordinator has not answered for so long: Ready is Unknown."""
    if not was_ready(status) or terminal(status) is not None or not lasts(status, no_contact, limit_seconds, now):
        return status
    reason, message = no_contact.reason, no_contact.message
    kind = ConditionType.COORDINATOR_REACHABLE
    status = with_condition(status, kind, now, true=False, reason=reason, message=message)
    status = with_unknown(status, ConditionType.READY, now, reason=reason, message=message)
    return status.model_copy(update={"phase": _phase(status)})


def with_cluster_status(observed: Observed, status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` with Progressing, the scale, and on every condition the generation of the spec that it was judged by.

    A local run shows of these the scale alone, if it scales itself: its spec does not change.
    """
    if observed.on_cluster:
        status = _ended(observed, status, now)
    status = status.model_copy(update={"scaling": _scaling(observed, status)}) if observed.scales else status
    if not observed.on_cluster:
        return status
    status = with_tool_conditions(_progressing(observed, status, now), now)
    # What a condition that another version wrote was judged by is not known here.
    conditions = [
        c.model_copy(update={"observed_generation": _generation(observed, c.type)})
        if isinstance(c.type, ConditionType)
        else c
        for c in status.conditions
    ]
    return status.model_copy(update={"conditions": conditions})


def with_tool_conditions(status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` as tools read it that know no RLJob, by the rules of kstatus: Flux, kpt, Argo CD and others.

    They take Reconciling=True and Ready=False for "in progress", Stalled=True for "failed", and what has neither for
    "current": so a job that has what its spec asks for, since it succeeded or is suspended, has no Ready.
    """
    accepted, failed = find(status, ConditionType.ACCEPTED), find(status, ConditionType.FAILED)
    if accepted is not None and accepted.status == "False":
        kind, reason, message = ConditionType.RECONCILING, accepted.reason, accepted.message
        status = with_condition(status, kind, now, true=True, reason=reason, message=message)
    else:
        status = without(status, [ConditionType.RECONCILING])
    if failed is not None and failed.status == "True":
        kind, reason, message = ConditionType.STALLED, failed.reason, failed.message
        return with_condition(status, kind, now, true=True, reason=reason, message=message)
    done = is_true(status, ConditionType.SUCCEEDED) or is_true(status, ConditionType.SUSPENDED)
    return without(status, [ConditionType.READY]) if done else status


def _generation(observed: Observed, kind: ConditionType) -> int:
    """What a condition was judged by: all but Accepted by the spec that the job goes by."""
    request = observed.request
    if kind is ConditionType.ACCEPTED and request.refusal is not None:
        return request.refusal.generation
    return request.generation


def _progressing(observed: Observed, status: RLJobStatus, now: float) -> RLJobStatus:
    """True also while launchers of an ended job have yet to receive that it is done: their pods stay until then."""
    kind, epoch = ConditionType.PROGRESSING, status.restart.epoch
    ended = terminal(status)
    suspended = find(status, ConditionType.SUSPENDED) if is_true(status, ConditionType.SUSPENDED) else None
    why = ended or suspended
    if why is not None and (suspended or is_over(observed, status, now)):
        return with_condition(status, kind, now, true=False, reason=why.reason, message=why.message)
    message = f"the job is in epoch {epoch}" if ended is None else "ranks and engines are stopped"
    return with_condition(status, kind, now, true=True, reason=kind, message=message)


def _ended(observed: Observed, status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` of a job that is over without what runs no more: pods that `cleanPodPolicy` leaves are listed still."""
    if terminal(status) is None or not is_over(observed, status, now):
        return status
    there = {fact.pod.role for fact in observed.pods}
    idle = with_pods(status, lambda _, pod: pod.model_copy(update={"ready": False}))
    roles = [role if role.name in there else counted(role, []) for role in idle.roles]
    return status.model_copy(update={"roles": roles})


def _scaling(observed: Observed, status: RLJobStatus) -> ScalingStatus:
    role = scaled_role(status)
    suspended = is_true(status, ConditionType.SUSPENDED)
    replicas = 0 if role is None or suspended else len(role.pods)
    desired = observed.replicas.get(SCALED_ROLE, 0)
    return status.scaling.model_copy(
        update={"replicas": replicas, "selector": observed.scale_selector, "desired": desired}
    )
