"""Attention: when to look again although nothing was announced. Silence (a hang, a stall) gives no event."""

from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.wire.observation import CoordinatorStatus, ServerState
from rljob_operator.core.conditions import is_true, terminal
from rljob_operator.core.drain import drained_at, is_draining
from rljob_operator.core.ends import deadline_at, deleted_at
from rljob_operator.core.hang import hangs_after_seconds, overdue_in
from rljob_operator.core.infrastructure import due_at
from rljob_operator.core.observed import Observed, Silence
from rljob_operator.core.orders import is_over, over_at
from rljob_operator.core.parting import saves_first
from rljob_operator.core.pods import given_up_after_seconds, is_parted
from rljob_operator.core.reach import seen_seconds, since_when, told_at
from rljob_operator.core.release import released_at
from rljob_operator.core.roster import pods
from rljob_operator.core.scaling import is_owed, leaves_at
from rljob_operator.core.stall import stalls_at
from rljob_operator.core.startup import too_late_at

LOOK_INTERVAL_SECONDS = 1.0
"""While something is on its way; in a local run always. On a cluster it is announced, and the look is for what is not:
a job that waits is looked at after as long again as it has waited, up to the quiet interval."""

OPENING_INTERVAL_SECONDS = 0.05
"""While the control state opens the whole job waits, and its end is not announced. Also when a pod was given up in
this turn: the one that takes its number may be there already."""

QUIET_INTERVAL_SECONDS = 30.0
"""A job on a cluster in which all is well: nothing can be overdue earlier than it is looked for."""

REST_INTERVAL_SECONDS = 600.0
"""A job that has ended or is suspended: whatever happens to it is announced."""


def look_again_at(observed: Observed, status: RLJobStatus, now: float) -> float:
    """Unix time, later than `now`."""
    times = [now + _interval(observed, status, now)]
    if is_over(observed, status, now):
        times += [at for at in (deleted_at(observed, status),) if at is not None]
        return min(at for at in times if at > now)
    times += [due_at(process, now) for process in observed.infrastructure if not process.alive]
    times += [leaves_at(pod) for _, pod in pods(status) if pod.draining]
    marks = (
        status.restart.backoff_until,
        over_at(status),
        drained_at(observed, status),
        deadline_at(observed, status),
        released_at(observed, status),
    )
    times += [at for at in (*marks, too_late_at(observed, status)) if at is not None]
    return min(at for at in times if at > now)


def _interval(observed: Observed, status: RLJobStatus, now: float) -> float:
    coordinator = observed.coordinator
    if saves_first(observed, status, now):
        return LOOK_INTERVAL_SECONDS
    if _waits_for_a_pod(observed, status):
        return OPENING_INTERVAL_SECONDS
    if observed.on_cluster and (is_true(status, ConditionType.SUSPENDED) or is_over(observed, status, now)):
        return REST_INTERVAL_SECONDS
    if coordinator is not None and coordinator.server is ServerState.OPENING:
        return OPENING_INTERVAL_SECONDS
    if not observed.on_cluster or terminal(status) is not None or is_draining(status) or is_owed(observed, status):
        return LOOK_INTERVAL_SECONDS
    soonest = [QUIET_INTERVAL_SECONDS]
    if coordinator is None or not is_true(status, ConditionType.READY):
        soonest.append(now - _waits_since(status))
    if coordinator is not None:
        stall = stalls_at(observed, status, now) - now
        soonest += [_silent_in(observed, status, coordinator, now), *([stall] if stall > 0 else [])]
    if observed.silence is not None:
        soonest += [at - now for at in _silence_counts_at(observed, status, observed.silence) if at > now]
    return max(min(soonest), LOOK_INTERVAL_SECONDS)


def _waits_since(status: RLJobStatus) -> float:
    """When what the job waits for was last ordered."""
    ordered = (pod.ordered_at for _, pod in pods(status))
    return max([status.restart.decided_at or 0.0, status.restart.opened_at or 0.0, *ordered])


def _waits_for_a_pod(observed: Observed, status: RLJobStatus) -> bool:
    """Whether a life was given up in this turn."""
    before = {key: pod.life for key, pod in pods(observed.status)}
    return observed.on_cluster and any(not pod.life and before.get(key) for key, pod in pods(status))


def _silence_counts_at(observed: Observed, status: RLJobStatus, silence: Silence) -> tuple[float, float]:
    """When the silence of the coordinator is told, and when the job is no longer called well for it."""
    limit = observed.policy.heartbeat_timeout_seconds
    return told_at(observed, silence), since_when(status, silence) + limit


def _silent_in(observed: Observed, status: RLJobStatus, coordinator: CoordinatorStatus, now: float) -> float:
    """Seconds until the first rank or launcher would be called silent, if nothing more is heard of any."""
    limit = hangs_after_seconds(observed)
    judged = [pod for pod in coordinator.pods if not is_parted(observed, status, pod, now)]
    ranks = [overdue_in(status, rank, limit, now) for pod in judged for rank in pod.ranks]
    launchers = [
        given_up_after_seconds(observed, status, pod, now) - seen_seconds(status, pod.poll_age_seconds, now)
        for pod in coordinator.pods
    ]
    return min([*ranks, *launchers], default=QUIET_INTERVAL_SECONDS)
