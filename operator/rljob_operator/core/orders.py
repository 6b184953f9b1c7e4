"""Orders: which actions bring the world to what the status says. Level-triggered: asked again, it answers again.

The order of the actions is the order of the contract: processes that everything needs, the failures that may be
forgotten because the status remembers them (else they would be reported again, as those of an earlier incarnation,
whenever what comes after is refused), the epoch, what pods shall do, and pods themselves.
"""

from collections.abc import Iterator

from rljob_api.names import Role
from rljob_api.roles import TRAITS
from rljob_api.status import ConditionType, Phase, PodStatus, RLJobStatus
from rljob_api.wire.epochs import UNSEEN_POD, DesiredState, PodOrder, PodPhase
from rljob_operator.core.conditions import is_draining, is_true, terminal
from rljob_operator.core.decision import (
    AcknowledgeFailures,
    Action,
    CreatePod,
    DeleteJob,
    KeepPod,
    KillPod,
    MarkForDeletion,
    RaiseEpoch,
    SetDesired,
    Stop,
)
from rljob_operator.core.drain import saves_first, saving
from rljob_operator.core.ends import deleted_at, is_over
from rljob_operator.core.membership import pods
from rljob_operator.core.observed import Observed, PodState, pod_uid
from rljob_operator.core.readiness import held


def orders(observed: Observed, status: RLJobStatus, now: float) -> tuple[Action, ...]:
    """What to do now, in order."""
    if is_over(observed, status, now):
        at = deleted_at(observed, status)
        end = DeleteJob() if at is not None and now >= at else Stop(Phase(status.phase))
        return (*_acknowledgements(observed), end)
    if is_true(status, ConditionType.SUSPENDED):
        return _acknowledgements(observed)
    waits = saves_first(observed, status, now)
    replaces = terminal(status) is None and not is_draining(status) and not waits
    return (
        *_acknowledgements(observed),
        *_epoch_and_desired(observed, status, now, waits=waits),
        *(_replacements(observed, status) if replaces else ()),
        *_marks(observed, status),
    )


def wanted(observed: Observed, status: RLJobStatus) -> DesiredState:
    """What every pod shall do. On one machine this supervisor makes a replica's next process: none can be early."""
    unseen = UNSEEN_POD if observed.on_cluster else ""
    return DesiredState(
        epoch=status.restart.epoch,
        pods=[
            PodOrder(
                pod=key,
                epoch=status.restart.epoch,
                generation=pod.generation,
                phase=_pod_phase(status, key.role, pod),
                pod_uid=pod_uid(pod.incarnation) or unseen,
            )
            for key, pod in pods(status)
        ],
        replicas={role.name.value: len(role.pods) for role in status.roles},
    )


def _pod_phase(status: RLJobStatus, role: Role, pod: PodStatus) -> PodPhase:
    if terminal(status) is not None:
        return PodPhase.DONE
    saves = is_draining(status) and TRAITS[role].saves
    return PodPhase.DRAIN if saves or pod.draining else PodPhase.RUN


def _epoch_and_desired(observed: Observed, status: RLJobStatus, now: float, *, waits: bool) -> Iterator[Action]:
    coordinator = observed.open_coordinator
    if coordinator is None:
        return
    restart = status.restart
    if coordinator.epoch < restart.epoch:
        if coordinator.desired is not None and waits:
            last = saving(coordinator.desired)
            if last != coordinator.desired:
                yield SetDesired(last)
            return
        if held(observed, status, now) is not None:
            return
        yield RaiseEpoch(restart.epoch, restart.decision_id, restart.message or "", restart.revision)
    desired = wanted(observed, status)
    if desired != coordinator.desired:
        yield SetDesired(desired)


def _replacements(observed: Observed, status: RLJobStatus) -> Iterator[Action]:
    for key, pod in pods(status):
        fact = observed.facts.get(key)
        if pod.draining or pod.incarnation or (fact is not None and fact.incarnation != pod.lost_incarnation):
            continue
        if fact is not None and fact.state is not PodState.EXITED:
            yield KillPod(key, fact.incarnation)
        yield CreatePod(key)


def _marks(observed: Observed, status: RLJobStatus) -> Iterator[Action]:
    """A replica that leaves is marked before the membership, and with it its Deployment, shrinks."""
    for key, pod in pods(status):
        fact = observed.facts.get(key)
        if fact is None or fact.ending is not None or fact.marked == pod.draining:
            continue
        yield MarkForDeletion(key, fact.incarnation) if pod.draining else KeepPod(key, fact.incarnation)


def _acknowledgements(observed: Observed) -> tuple[Action, ...]:
    """Every failure that was seen is by now counted, or of an incarnation that was restarted, or beyond help."""
    failures = observed.open_coordinator.failures if observed.open_coordinator is not None else []
    return (AcknowledgeFailures(tuple(failure.id for failure in failures)),) if failures else ()
