"""Release: a gang that cannot train since there is no room for a pod that it has lost gives its other pods back.

Pure. Called by `decide`. Two jobs that have each lost a pod would otherwise hold for ever what the other waits for. All
of the job's workers go, and are placed again as a whole; coordinator and Redis stay, since they hold no GPU.
"""

from rljob_api.role_traits import TRAITS, Grouping
from rljob_api.status import RLJobStatus
from rljob_operator.core.observed import Observed, PodFact, PodState
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import staying
from rljob_operator.core.verdicts import RestartGlobal


def released(observed: Observed, status: RLJobStatus, now: float) -> RestartGlobal | None:
    """The restart in which a job lets go of all of its pods."""
    at = released_at(observed, status)
    if at is None or now < at:
        return None
    homeless = _homeless(observed, status)
    first = min(homeless, key=lambda fact: fact.started_at)
    waited = now - first.started_at
    message = (
        f"there has been no room for pod {first.pod} for {waited:.0f} s, without which the job cannot train; it gives "
        "its other pods back and waits as a whole (scheduling.gang)"
    )
    ids = tuple(f"release/{fact.life}" for fact in homeless)
    return RestartGlobal(Reason.GANG_RELEASED, message, role=first.pod.role, ids=ids, counts=False, releases=True)


def released_at(observed: Observed, status: RLJobStatus) -> float | None:
    """When the job gives its pods back; None while it can train, or has none."""
    patience = observed.release_after_seconds
    if patience is None or not any(_holds(observed.fact(key)) for key, pod in staying(status) if pod.life):
        return None
    since = [fact.started_at for fact in _homeless(observed, status)]
    return min(since) + patience if since else None


def given_back(observed: Observed, status: RLJobStatus) -> RLJobStatus:
    """`status`, once no pod is there any more, without the word that keeps others from being made.

    The scheduler counts pods that are on their way out: with them a new one would be one of a whole gang, alone.
    """
    if not status.restart.releasing or observed.num_worker_pods:
        return status
    return status.model_copy(update={"restart": status.restart.model_copy(update={"releasing": False})})


def _homeless(observed: Observed, status: RLJobStatus) -> list[PodFact]:
    """Pods without a node, of roles that can do nothing without them: a gang without one, another role without all."""
    found: list[PodFact] = []
    for role in status.roles:
        keys = [key for key, _ in staying(status) if key.role is role.name]
        waiting = [fact for key in keys if (fact := observed.fact(key)) is not None and _waits(fact)]
        is_gang = TRAITS[role.name].grouping is Grouping.GANG
        if waiting and (is_gang or len(waiting) == len(keys)):
            found += waiting
    return found


def _waits(fact: PodFact) -> bool:
    return fact.state is PodState.PENDING and not fact.placed


def _holds(fact: PodFact | None) -> bool:
    return fact is not None and fact.placed and fact.state is not PodState.EXITED
