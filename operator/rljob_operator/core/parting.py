"""Parting: pods that the cluster takes away and has told so. They still run for as long as their grace lasts.

Pure. A node that is drained, a preemption and a deletion are announced by SIGTERM: the pod's launcher drains. Before
the job restarts in a new epoch, which would fence what is being saved, the actor is told to save too, whoever goes.
"""

from rljob_api.role_traits import TRAITS
from rljob_api.status import RLJobStatus
from rljob_api.wire.epochs import DesiredState, PodPhase
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import PodObservation
from rljob_operator.core.drain import at_work, has_time
from rljob_operator.core.observed import Observed, PodFact
from rljob_operator.core.reasons import Reason

HEARD_SECONDS = 3.0
"""A launcher asks for orders every second; one that has not for this long is gone, whatever its grace."""

STUCK_SECONDS = 5.0
"""An actor that has begun to train on a rollout and waits for its other rows cannot leave: one that still waits by then
has nobody left to make them. One that saves announces it, and waits for that."""

_ANNOUNCED = (Reason.POD_EVICTED, Reason.POD_PREEMPTED, Reason.POD_DELETED, Reason.GANG_RELEASED)
"""Why epochs are decided whose old ones end well. A lost node announces nothing, nor does a death."""


def is_parting(observed: Observed, key: PodKey, fact: PodFact | None, now: float) -> bool:
    """Whether a pod that is taken away still runs and may finish what it does."""
    if fact is None or fact.leaves_by is None or now >= fact.leaves_by:
        return False
    seen = observed.seen(key, fact.life)
    return seen is not None and _is_heard(seen)


def saves_first(observed: Observed, status: RLJobStatus, now: float) -> bool:
    """Whether the epoch that is decided waits for the actor, which saves in the old one."""
    coordinator, restart = observed.coordinator, status.restart
    if coordinator is None or coordinator.desired is None or restart.reason not in _ANNOUNCED:
        return False
    waited = now - (restart.decided_at or 0.0)
    if not 0 < coordinator.epoch < restart.epoch:
        return False
    savers = [pod for pod in coordinator.pods if TRAITS[pod.pod.role].saves and _is_heard(pod)]
    ranks = [rank for pod in savers for rank in at_work(pod, coordinator.epoch)]
    is_stuck = waited >= STUCK_SECONDS and all(rank.waiting is not None and rank.busy is None for rank in ranks)
    return bool(ranks) and has_time(ranks, waited) and not is_stuck


def saving(desired: DesiredState) -> DesiredState:
    """The old epoch's orders, in which whoever saves is told to leave."""
    pods = [
        order.model_copy(update={"phase": PodPhase.DRAIN}) if TRAITS[order.pod.role].saves else order
        for order in desired.pods
    ]
    return desired.model_copy(update={"pods": pods})


def _is_heard(seen: PodObservation) -> bool:
    return seen.is_heard and seen.poll_age_seconds <= HEARD_SECONDS
