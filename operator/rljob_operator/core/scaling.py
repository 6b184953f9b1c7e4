"""Scaling of the rollouts while the job runs: replicas join without a restart, and leave only when they have drained.

Pure. Called by `decide` when nothing is restarted. Numbers stay dense: the highest replicas leave first. A replica that
leaves was marked before, so that its Deployment takes no other when it shrinks:

    draining, marked, ordered to drain -> its ranks have ended -> no longer a member -> the Deployment shrinks
"""

from rljob_api.roles import SCALED_ROLE
from rljob_api.status import ConditionType, PodStatus, RLJobStatus
from rljob_api.wire.epochs import PodPhase
from rljob_api.wire.identity import PodKey
from rljob_operator.core.conditions import is_scaling, is_true, is_without_infrastructure
from rljob_operator.core.decision import Event, Step
from rljob_operator.core.drain import DRAIN_LIMIT_SECONDS
from rljob_operator.core.membership import counted, new_pod, scaled_role, without_incarnation
from rljob_operator.core.observed import Observed, PodState
from rljob_operator.core.reasons import Reason

_Change = tuple[list[PodStatus], list[tuple[Reason, str]]]
"""The replicas after a step, and the events of its changes."""


LEAVE_LIMIT_SECONDS = DRAIN_LIMIT_SECONDS
"""A replica that has not drained by then goes all the same; the tickets of its incarnation come back by themselves."""


def scaled(observed: Observed, status: RLJobStatus, now: float) -> Step:
    """`status` with the rollout replicas brought nearer to what is wanted."""
    role = scaled_role(status)
    if not observed.scales or role is None or SCALED_ROLE not in observed.replicas:
        return status, ()
    members, events = role.pods, []
    for step in (_revived, _with_joined, _with_draining, _without_drained):
        members, messages = step(observed, status, members, now)
        events += [Event(now, reason, message, SCALED_ROLE) for reason, message in messages]
    if members == role.pods:
        return status, ()
    roles = [counted(old, members) if old is role else old for old in status.roles]
    return status.model_copy(update={"roles": roles}), tuple(events)


def is_owed(observed: Observed, status: RLJobStatus) -> bool:
    """Whether replicas that are wanted have not joined yet."""
    role = scaled_role(status)
    have = len(role.pods) if role is not None else 0
    return observed.scales and have < observed.replicas.get(SCALED_ROLE, 0)


def _because(observed: Observed, status: RLJobStatus) -> str:
    """Why autoscaling wants another number, as the end of an event's sentence."""
    return f" ({status.scaling.message})" if observed.autoscaling is not None and status.scaling.message else ""


def _revived(observed: Observed, _: RLJobStatus, members: list[PodStatus], now: float) -> _Change:
    """Draining replicas that are wanted again begin a new incarnation: the old one was ordered to end."""
    wanted = observed.replicas[SCALED_ROLE]
    back = [pod for n, pod in enumerate(members) if pod.draining and n < wanted]
    if not back:
        return members, []
    names = ", ".join(pod.name for pod in back)
    changed = [_stay(observed, n, pod, now) if pod in back else pod for n, pod in enumerate(members)]
    return changed, [(Reason.SCALED_UP, f"{wanted} rollout replicas are wanted again: {names} goes on")]


def _stay(observed: Observed, replica: int, pod: PodStatus, now: float) -> PodStatus:
    pod = pod.model_copy(update={"draining": False, "drain_ordered_at": None})
    fact = observed.facts.get(PodKey(role=SCALED_ROLE, replica=replica))
    if pod.incarnation and (fact is None or fact.incarnation != pod.incarnation or fact.state is PodState.EXITED):
        return without_incarnation(pod, fact, now)
    return pod.model_copy(update={"generation": pod.generation + 1, "ready": False, "ordered_at": now})


def _without_drained(observed: Observed, _: RLJobStatus, members: list[PodStatus], now: float) -> _Change:
    left, messages = list(members), []
    while left and left[-1].draining and _may_go(observed, len(left) - 1, left[-1], now):
        messages.append((Reason.SCALED_DOWN, f"{left.pop().name} has drained and goes"))
    return left, messages


def _may_go(observed: Observed, replica: int, pod: PodStatus, now: float) -> bool:
    fact = observed.facts.get(PodKey(role=SCALED_ROLE, replica=replica))
    if fact is None or now >= leaves_at(pod):
        return True
    return (fact.marked or fact.ending is not None) and _nothing_runs(observed, replica, pod)


def leaves_at(pod: PodStatus) -> float:
    """When a draining replica goes in any case."""
    return (pod.drain_ordered_at or 0.0) + LEAVE_LIMIT_SECONDS


def _nothing_runs(observed: Observed, replica: int, pod: PodStatus) -> bool:
    key = PodKey(role=SCALED_ROLE, replica=replica)
    fact = observed.facts.get(key)
    if fact is None or fact.incarnation != pod.incarnation or fact.state is not PodState.RUNNING:
        return True
    if observed.coordinator is None:
        return False
    seen = observed.observations.get((key, pod.incarnation))
    if seen is None:
        return True
    is_ordered = seen.carried is not None and seen.carried.phase is PodPhase.DRAIN
    return is_ordered and all(process.exit_code is not None for process in seen.processes)


def _with_joined(observed: Observed, status: RLJobStatus, members: list[PodStatus], now: float) -> _Change:
    """During a restart no replica joins: there would be one more to wait for.

    Nor under a number that the coordinator still has an order for: the next one's would be older than that.
    """
    wanted = observed.replicas[SCALED_ROLE]
    if len(members) >= wanted or _is_restarting(status) or _has_orders_for(observed, len(members)):
        return members, []
    message = f"rollout scales from {len(members)} to {wanted} replicas{_because(observed, status)}"
    joined = [new_pod(SCALED_ROLE, n, now) for n in range(len(members), wanted)]
    return [*members, *joined], [(Reason.SCALED_UP, message)]


def _has_orders_for(observed: Observed, replica: int) -> bool:
    """Whether a replica from this number on may still be ordered; true while the coordinator does not answer."""
    if observed.coordinator is None:
        return True
    desired = observed.coordinator.desired
    ordered = [order.pod for order in desired.pods] if desired is not None else []
    return any(key.role is SCALED_ROLE and key.replica >= replica for key in ordered)


def _with_draining(observed: Observed, status: RLJobStatus, members: list[PodStatus], now: float) -> _Change:
    """During a restart only replicas leave that have never begun: the job may wait for them in vain."""
    changed, wanted = list(members), observed.replicas[SCALED_ROLE]
    stay = sum(not pod.draining for pod in members)
    for n in range(stay - 1, wanted - 1, -1):
        if _is_restarting(status) and _runs(observed, n):
            break
        changed[n] = changed[n].model_copy(update={"draining": True, "drain_ordered_at": now})
    names = [pod.name for old, pod in zip(members, changed, strict=True) if pod is not old]
    if not names:
        return members, []
    message = f"rollout scales from {stay} to {stay - len(names)} replicas: {', '.join(names)} drains"
    return changed, [(Reason.SCALED_DOWN, message + _because(observed, status))]


def _runs(observed: Observed, replica: int) -> bool:
    fact = observed.facts.get(PodKey(role=SCALED_ROLE, replica=replica))
    return fact is not None and fact.state is PodState.RUNNING


def _is_restarting(status: RLJobStatus) -> bool:
    runs = is_true(status, ConditionType.READY) or is_scaling(status) or is_without_infrastructure(status)
    return not runs
