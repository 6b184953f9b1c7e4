"""Draining: what trains saves before an interruption, a suspension, or a restart that a graceful termination announced.

Node drains, preemptions and deletions arrive as SIGTERM, and the pod's launcher drains. Before such a restart opens a
new epoch, which fences the old one, the roles that save are ordered to, whichever pod leaves: the actor, and a critic
beside it, which leave at one version. Pure.
"""

from collections.abc import Collection, Iterable

from rljob_api.names import Role
from rljob_api.roles import SAVING_ROLES, TRAITS, field_name
from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.times import seconds
from rljob_api.wire.epochs import DesiredState, PodPhase
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import PodObservation, RankObservation
from rljob_api.wire.ranks import RankState
from rljob_operator.core.conditions import find, is_draining, is_suspending
from rljob_operator.core.decision import Drain, Interrupt, Suspend
from rljob_operator.core.membership import is_known, pods
from rljob_operator.core.observed import Observed, PodFact
from rljob_operator.core.queue import BY_USER
from rljob_operator.core.reasons import Reason

DRAIN_LIMIT_SECONDS = 60.0
"""A trainer that has not saved by then, and has not announced that it needs longer for its bytes, is stopped; the last
recorded checkpoint is what the job resumes from. Its launcher kills it after stallTimeoutSeconds."""


def saving_roles(status: RLJobStatus) -> tuple[Role, ...]:
    """Roles of the job that save, the leading one first."""
    present = {role.name for role in status.roles}
    return tuple(role for role in SAVING_ROLES if role in present)


def saves(status: RLJobStatus) -> str:
    """Who saves, as a sentence begins: "the actor saves"."""
    roles = saving_roles(status)
    return f"{named(roles)} {'save' if len(roles) > 1 else 'saves'}"


def named(roles: Collection[Role]) -> str:
    """Roles as the subject of a sentence."""
    names = [field_name(role) for role in SAVING_ROLES if role in roles]
    return f"the {names[0]}" if len(names) == 1 else " and ".join(names)


def drain(observed: Observed, status: RLJobStatus, now: float) -> Drain | Interrupt | Suspend | None:
    """Draining while a trainer still has something to save, then the interruption or the suspension."""
    if not stopping(observed, status):
        return None
    if observed.interrupted_at is not None:
        why = _drained(observed, status, now, observed.interrupted_at)
        return Drain() if why is None else Interrupt(why)
    hold = observed.hold or BY_USER  # taken back since: the drain is finished, and the job begins again at once
    why = _drained(observed, status, now, _suspending_since(status, now))
    if why is None:
        return Drain(ConditionType.SUSPENDED, hold.message)
    return Suspend(why if hold is BY_USER else f"{hold.message}; {why}", hold.reason)


def stopping(observed: Observed, status: RLJobStatus) -> bool:
    """Whether the job is on its way to an interruption or suspension.

    A drain that was begun is finished: those that save have their order already.
    """
    return observed.interrupted_at is not None or observed.hold is not None or is_draining(status)


def drained_at(observed: Observed, status: RLJobStatus) -> float | None:
    """When draining ends, unless a trainer announces more; None while nothing drains."""
    if observed.interrupted_at is not None:
        return observed.interrupted_at + DRAIN_LIMIT_SECONDS
    return _suspending_since(status, 0.0) + DRAIN_LIMIT_SECONDS if is_suspending(status) else None


def at_work(seen: PodObservation, epoch: int) -> list[RankObservation]:
    """Ranks of this epoch that have something to save: one that has only started holds nothing new."""
    running = {p.incarnation for p in seen.processes if p.exit_code is None and p.epoch == epoch}
    return [rank for rank in seen.ranks if rank.state is RankState.READY and rank.incarnation in running]


def has_time(ranks: Iterable[RankObservation], waited: float) -> bool:
    """Whether savers that were ordered to leave so long ago are waited for."""
    return waited < DRAIN_LIMIT_SECONDS or any((rank.busy_left_seconds or 0.0) > 0 for rank in ranks)


def _suspending_since(status: RLJobStatus, now: float) -> float:
    condition = find(status, ConditionType.SUSPENDED)
    return seconds(condition.last_transition_time) if condition is not None and is_suspending(status) else now


def _drained(observed: Observed, status: RLJobStatus, now: float, since: float) -> str | None:
    """Why the drain is over; None while a trainer saves."""
    by_role = _saving(observed, status)
    saving = [rank for ranks in by_role.values() for rank in ranks]
    if not has_time(saving, now - since):
        return f"{named(by_role or saving_roles(status))} had not saved after {now - since:.0f} s"
    return None if saving or _may_be_saving_unseen(observed, status) else "stopped"


def _may_be_saving_unseen(observed: Observed, status: RLJobStatus) -> bool:
    """A coordinator that does not answer for a moment, or is new, must not cost what was trained."""
    savers = [(key, pod) for key, pod in pods(status) if TRAITS[key.role].saves]
    unseen = any(pod.ready and not is_known(observed, key, pod) for key, pod in savers)
    return unseen and status.restart.opened == status.restart.epoch


def _saving(observed: Observed, status: RLJobStatus) -> dict[Role, list[RankObservation]]:
    """Ranks of the current epoch that are at work, of each role that saves and has any."""
    if observed.coordinator is None or observed.coordinator.epoch != status.restart.epoch:
        return {}
    found: dict[Role, list[RankObservation]] = {}
    for key, pod in pods(status):
        seen = observed.observations.get((key, pod.incarnation))
        if TRAITS[key.role].saves and seen is not None and (ranks := at_work(seen, status.restart.epoch)):
            found.setdefault(key.role, []).extend(ranks)
    return found


POLL_SECONDS = 3.0
"""A launcher asks for orders every second; one that has not for this long is gone, whatever its grace."""


STUCK_SECONDS = 5.0
"""A trainer that has begun to train on a rollout and waits for its other rows cannot leave: if all still wait by then,
they have no rollout left to make them. One that saves announces it, and is waited for."""


_ANNOUNCED = (Reason.POD_EVICTED, Reason.POD_PREEMPTED, Reason.POD_DELETED, Reason.GANG_RELEASED)
"""Why epochs are decided whose old ones end well. A lost node announces nothing, nor does a death."""


def is_terminating_gracefully(observed: Observed, key: PodKey, fact: PodFact | None, now: float) -> bool:
    """Whether a pod that is taken away still runs and may finish what it does."""
    if fact is None or fact.terminates_by is None or now >= fact.terminates_by:
        return False
    seen = observed.observations.get((key, fact.incarnation))
    return seen is not None and _polls(seen)


def saves_first(observed: Observed, status: RLJobStatus, now: float) -> bool:
    """Whether the epoch that is decided waits for those who save, in the old one."""
    coordinator, restart = observed.coordinator, status.restart
    if coordinator is None or coordinator.desired is None or restart.reason not in _ANNOUNCED:
        return False
    waited = now - (restart.decided_at or 0.0)
    if not 0 < coordinator.epoch < restart.epoch:
        return False
    savers = [pod for pod in coordinator.pods if TRAITS[pod.pod.role].saves and _polls(pod)]
    ranks = [rank for pod in savers for rank in at_work(pod, coordinator.epoch)]
    is_stuck = waited >= STUCK_SECONDS and all(rank.waiting is not None and rank.busy is None for rank in ranks)
    return bool(ranks) and has_time(ranks, waited) and not is_stuck


def saving(desired: DesiredState) -> DesiredState:
    """The old epoch's orders, in which the roles that save are ordered to leave."""
    pods = [
        order.model_copy(update={"phase": PodPhase.DRAIN}) if TRAITS[order.pod.role].saves else order
        for order in desired.pods
    ]
    return desired.model_copy(update={"pods": pods})


def _polls(seen: PodObservation) -> bool:
    return seen.is_heard and seen.poll_age_seconds <= POLL_SECONDS
