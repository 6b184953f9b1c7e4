"""Orders: which actions bring the world to what the status says. Level-triggered: asked again, it answers again.

The order of the actions is the order of the contract: processes that everything needs, the epoch, what pods shall do,
pods themselves, and last the failures that may be forgotten because the status remembers them.
"""

from collections.abc import Iterator

from rljob_api.names import Role
from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.wire.epochs import DesiredState, PodOrder, PodPhase
from rljob_api.wire.observation import ServerState
from rljob_operator.core.conditions import find, seconds, terminal
from rljob_operator.core.decision import AcknowledgeFailures, Action, CreatePod, KillPod, RaiseEpoch, SetDesired, Stop
from rljob_operator.core.observed import Observed, PodState
from rljob_operator.core.phase import phase
from rljob_operator.core.roster import pods

DONE_LIMIT_SECONDS = 10.0
"""Launchers that have not ended by then are killed: what they should have saved is saved."""


def orders(observed: Observed, status: RLJobStatus, now: float) -> tuple[Action, ...]:
    """What to do now, in order."""
    if _is_over(observed, status, now):
        return (*_acknowledgements(observed), Stop(phase(status)))
    return (
        *_epoch_and_desired(observed, status, now),
        *(_replacements(observed, status) if terminal(status) is None else ()),
        *_acknowledgements(observed),
    )


def over_at(status: RLJobStatus) -> float | None:
    """When what still runs of an ended job is killed."""
    ended = terminal(status)
    return None if ended is None else seconds(ended.last_transition_time) + DONE_LIMIT_SECONDS


def wanted(observed: Observed, status: RLJobStatus) -> DesiredState:
    """What every pod shall do."""
    return DesiredState(
        epoch=status.restart.epoch,
        pods=[
            PodOrder(pod=key, epoch=status.restart.epoch, generation=pod.generation, phase=_pod_phase(status, key.role))
            for key, pod in pods(status)
        ],
        replicas={role.value: count for role, count in observed.replicas.items()},
    )


def _pod_phase(status: RLJobStatus, role: Role) -> PodPhase:
    if terminal(status) is not None:
        return PodPhase.DONE
    draining = find(status, ConditionType.INTERRUPTED) is not None
    return PodPhase.DRAIN if draining and role is Role.ACTOR else PodPhase.RUN


def _is_over(observed: Observed, status: RLJobStatus, now: float) -> bool:
    at = over_at(status)
    if at is None:
        return False
    running = any(fact.state is not PodState.EXITED for fact in observed.pods)
    nobody_listens = status.restart.opened < status.restart.epoch
    return not running or nobody_listens or now >= at


def _epoch_and_desired(observed: Observed, status: RLJobStatus, now: float) -> Iterator[Action]:
    if not _is_open(observed):
        return
    restart = status.restart
    if observed.coordinator is not None and observed.coordinator.epoch < restart.epoch:
        if restart.backoff_until is not None and now < restart.backoff_until:
            return
        yield RaiseEpoch(restart.epoch, restart.decision_id, restart.reason or "")
    desired = wanted(observed, status)
    if desired != observed.desired:
        yield SetDesired(desired)


def _is_open(observed: Observed) -> bool:
    """Whether the coordinator takes requests: while it opens the control state it would only refuse them."""
    return observed.coordinator is not None and observed.coordinator.server is not ServerState.OPENING


def _replacements(observed: Observed, status: RLJobStatus) -> Iterator[Action]:
    if find(status, ConditionType.INTERRUPTED) is not None:
        return
    for key, pod in pods(status):
        fact = observed.fact(key)
        if pod.life or (fact is not None and fact.life != pod.lost_life):
            continue
        if fact is not None and fact.state is not PodState.EXITED:
            yield KillPod(key, fact.life)
        yield CreatePod(key)


def _acknowledgements(observed: Observed) -> tuple[Action, ...]:
    """Every failure that was seen is by now counted, or of a life that was restarted, or beyond help."""
    failures = observed.coordinator.failures if _is_open(observed) and observed.coordinator is not None else []
    return (AcknowledgeFailures(tuple(failure.id for failure in failures)),) if failures else ()
