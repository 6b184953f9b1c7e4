"""What the status of a job on a cluster says besides, for those who read conditions and the scale."""

from rljob_api.role_traits import SCALED_ROLE
from rljob_api.status import ConditionType, RLJobStatus, ScalingStatus
from rljob_operator.core.conditions import find, is_true, terminal, with_condition
from rljob_operator.core.observed import Observed
from rljob_operator.core.orders import is_over
from rljob_operator.core.roster import counted, with_pods


def with_cluster_status(observed: Observed, status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` with Progressing, the scale, and on every condition the generation of the spec that it was judged by.

    A local run shows of these the scale alone, if it scales itself: its spec does not change.
    """
    if observed.on_cluster:
        status = _ended(observed, status, now)
    status = status.model_copy(update={"scaling": _scaling(observed, status)}) if observed.scales else status
    if not observed.on_cluster:
        return status
    status = _progressing(observed, status, now)
    # Of a condition that another version wrote nobody here knows what it was judged by.
    conditions = [
        c.model_copy(update={"observed_generation": _generation(observed, c.type)})
        if isinstance(c.type, ConditionType)
        else c
        for c in status.conditions
    ]
    return status.model_copy(update={"conditions": conditions})


def _generation(observed: Observed, kind: ConditionType) -> int:
    """What a condition was judged by: all but Accepted by the spec that the job goes by."""
    wishes = observed.wishes
    if kind is ConditionType.ACCEPTED and wishes.refusal is not None:
        return wishes.refusal.generation
    return wishes.generation


def _progressing(observed: Observed, status: RLJobStatus, now: float) -> RLJobStatus:
    """True also while launchers of an ended job are told that it is done: their pods stay until then."""
    kind, epoch = ConditionType.PROGRESSING, status.restart.epoch
    ended = terminal(status)
    suspended = find(status, ConditionType.SUSPENDED) if is_true(status, ConditionType.SUSPENDED) else None
    why = ended or suspended
    if why is not None and (suspended or is_over(observed, status, now)):
        return with_condition(status, kind, now, true=False, reason=why.reason, message=why.message)
    message = f"the job is in epoch {epoch}" if ended is None else "ranks and engines are stopped"
    return with_condition(status, kind, now, true=True, reason=kind.value, message=message)


def _ended(observed: Observed, status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` of a job that is over without what runs no more: pods that `cleanPodPolicy` leaves are listed still."""
    if terminal(status) is None or not is_over(observed, status, now):
        return status
    there = {fact.pod.role for fact in observed.pods}
    idle = with_pods(status, lambda _, pod: pod.model_copy(update={"ready": False}))
    roles = [role if role.name in there else counted(role, []) for role in idle.roles]
    return status.model_copy(update={"roles": roles})


def _scaling(observed: Observed, status: RLJobStatus) -> ScalingStatus:
    role = next((role for role in status.roles if role.name is SCALED_ROLE), None)
    suspended = is_true(status, ConditionType.SUSPENDED)
    replicas = 0 if role is None or suspended else len(role.pods)
    desired = observed.replicas.get(SCALED_ROLE, 0)
    return status.scaling.model_copy(
        update={"replicas": replicas, "selector": observed.scale_selector, "desired": desired}
    )
