"""Stalls: nothing comes forward in time although nothing is dead. Names who waits for what.

Forward is a step, or what ranks tell of the way to one: tokens, rows. That is bounded between two steps, so that a job
in which something moves for ever and no step comes is stalled, too (`Beat.progress`).
"""

from rljob_api.names import Epoch
from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.times import seconds
from rljob_api.wire.observation import RankObservation, ServerState
from rljob_operator.core.conditions import find, is_true
from rljob_operator.core.observed import Observed, PodFact, PodState
from rljob_operator.core.reach import heard_since
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import pods, staying
from rljob_operator.core.scaling import is_scaling
from rljob_operator.core.verdicts import RestartGlobal


def stalled(observed: Observed, status: RLJobStatus, now: float) -> RestartGlobal | None:
    """A global restart when nothing has come forward for stallTimeoutSeconds, though tickets were given."""
    limit = observed.policy.stall_timeout_seconds
    if observed.coordinator is None or observed.coordinator.queue.draining_since is not None:
        return None
    if observed.coordinator.server is ServerState.OPENING:
        return None  # it does not know yet whether the queue drains
    stalls = stalls_at(observed, status, now)
    if now < stalls:
        return None
    if not is_true(status, ConditionType.READY) and (_somebody_is_busy(observed) or _somebody_comes(observed, status)):
        return None
    still = now - stalls + limit
    message = (
        f"no step was trained and nothing was done for one in {still:.0f} s (stallTimeoutSeconds {limit}): "
        f"{_who_waits(observed, status)}"
    )
    return RestartGlobal(Reason.STALLED, message, ids=(f"stall/{status.restart.epoch}",))


def stalls_at(observed: Observed, status: RLJobStatus, now: float) -> float:
    """When the job will be stalled, counted from the last progress, step, restart, readiness and end of a drain.

    And from the end of a silence of the coordinator, which every time was told.
    """
    ready = find(status, ConditionType.READY)
    # What comes and goes again would put a stall off for ever: only the roles' readiness counts.
    since_ready = 0.0
    if ready is not None and ready.status == "True" and ready.reason == Reason.READY:
        since_ready = seconds(ready.last_transition_time)
    last_step = status.training.last_report_time or 0.0
    since_epoch = max(
        status.restart.decided_at or 0.0, status.restart.backoff_until or 0.0, status.restart.opened_at or 0.0
    )
    since = max(last_step, since_epoch, since_ready, heard_since(status), *_told(observed, now))
    return since + observed.policy.stall_timeout_seconds


def _told(observed: Observed, now: float) -> list[float]:
    """When the job last came forward, and when a drain ended, by the coordinator's word."""
    if observed.coordinator is None:
        return []
    age, drained = observed.coordinator.progress_age_seconds, observed.coordinator.queue.drained_until
    return [*([] if age is None else [now - age]), *([] if drained is None else [drained])]


def _somebody_comes(observed: Observed, status: RLJobStatus) -> bool:
    """A pod that its platform has not started, which Ready names, or a launcher that has not registered.

    That has a limit of its own, after which the pod is replaced. A restart before it would cure nothing.
    """
    return not is_scaling(status) and any(_comes(observed, observed.fact(key)) for key, _ in staying(status))


def _comes(observed: Observed, fact: PodFact | None) -> bool:
    if fact is None or fact.state is PodState.PENDING:
        return True
    return fact.state is PodState.RUNNING and observed.seen(fact.pod, fact.life) is None


def _somebody_is_busy(observed: Observed) -> bool:
    """Start-up is as long as the ranks say it is: each has its own announced deadline."""
    coordinator = observed.coordinator
    if coordinator is None:
        return False
    return any((rank.busy_left_seconds or 0) > 0 for pod in coordinator.pods for rank in pod.ranks)


def _who_waits(observed: Observed, status: RLJobStatus) -> str:
    waiting = [
        f"{key}.{rank.rank} {_what(rank)}"
        for key, pod in pods(status)
        if (seen := observed.seen(key, pod.life)) is not None
        for rank in seen.ranks
        if rank.epoch == Epoch(status.restart.epoch)
    ]
    return "; ".join(waiting) if waiting else "no rank has registered"


def _what(rank: RankObservation) -> str:
    """Who is at work is as telling as who waits: the others wait for it."""
    if rank.waiting is not None:
        return f"waits for {rank.waiting}"
    return "is at work" if rank.busy is None else f"is busy with {rank.busy.what}"
