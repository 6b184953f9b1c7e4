"""Gang release: a job without room for a lost pod gives all its pods back and waits as a whole (`scheduling.gang`).

Else two jobs could hold for ever what the other needs. It is not counted. Pure; for `restart` and `decide`.
"""

from rljob_api.status import RLJobStatus
from rljob_operator.core.decision import RestartGlobal
from rljob_operator.core.membership import gang_of, remaining
from rljob_operator.core.observed import Observed, PodFact, PodState
from rljob_operator.core.reasons import Reason


def released(observed: Observed, status: RLJobStatus, now: float) -> RestartGlobal | None:
    """The restart in which a job lets go of all of its pods."""
    at = released_at(observed, status)
    if at is None or now < at:
        return None
    unplaced = _unplaced(observed, status)
    first = min(unplaced, key=lambda fact: fact.started_at)
    waited = now - first.started_at
    message = (
        f"there has been no room for pod {first.pod} for {waited:.0f} s, without which the job cannot train; it gives "
        "its other pods back and waits as a whole (scheduling.gang)"
    )
    ids = tuple(f"release/{fact.incarnation}" for fact in unplaced)
    return RestartGlobal(Reason.GANG_RELEASED, message, role=first.pod.role, ids=ids, counts=False, releases=True)


def released_at(observed: Observed, status: RLJobStatus) -> float | None:
    """When the job gives its pods back; None while it can train, or has none."""
    patience = observed.release_after_seconds
    if patience is None or not any(
        _holds(observed.facts.get(key)) for key, pod in remaining(status) if pod.incarnation
    ):
        return None
    since = [fact.started_at for fact in _unplaced(observed, status)]
    return min(since) + patience if since else None


def given_back(observed: Observed, status: RLJobStatus) -> RLJobStatus:
    """`status`, once no pod is there any more, without the mark that prevents others from being made.

    The scheduler counts pods that are on their way out: with them a new one would be one of a whole gang, alone.
    """
    if not status.restart.releasing or observed.num_worker_pods:
        return status
    return status.model_copy(update={"restart": status.restart.model_copy(update={"releasing": False})})


def _unplaced(observed: Observed, status: RLJobStatus) -> list[PodFact]:
    """Pods without a node, of roles that can do nothing without them: each gang of theirs lacks one."""
    found: list[PodFact] = []
    for role in status.roles:
        keys = [key for key, _ in remaining(status) if key.role is role.name]
        waiting = [fact for key in keys if (fact := observed.facts.get(key)) is not None and _waits(fact)]
        gangs = {gang_of(observed.topologies, key) for key in keys}
        if waiting and len({gang_of(observed.topologies, fact.pod) for fact in waiting}) == len(gangs):
            found += waiting
    return found


def _waits(fact: PodFact) -> bool:
    return fact.state is PodState.PENDING and not fact.placed


def _holds(fact: PodFact | None) -> bool:
    return fact is not None and fact.placed and fact.state is not PodState.EXITED
