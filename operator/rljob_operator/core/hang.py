"""Hangs: a rank whose main loop has not beaten in time, and is not busy by its own word.

A rank that announced long work is left alone until its own deadline is over. One whose launcher is silent, too, is not
judged: then the pod or its node does not answer, which is soon told as one cause. Before its registration a rank cannot
beat: there the limit of registration holds. A pod whose ranks do not begin in time for the second time is replaced.
"""

from rljob_api.status import PodStatus, RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import RankProcess
from rljob_api.wire.observation import PodObservation, RankObservation
from rljob_operator.core.observed import Observed
from rljob_operator.core.pods import POLL_SLACK_SECONDS, REGISTER_LIMIT_SECONDS, is_parted
from rljob_operator.core.reach import heard_since, seen_seconds
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import staying
from rljob_operator.core.verdicts import Cause

BEATS_AWAITED = 2
"""No rank is called silent before it could have beaten so often."""


def hanging(observed: Observed, status: RLJobStatus, now: float) -> list[Cause]:
    """A cause for every running rank that hangs, and for every pod that does not begin what it was ordered."""
    causes: list[Cause] = []
    for key, pod in staying(status):
        seen = observed.seen(key, pod.life)
        if seen is None or is_parted(observed, status, seen, now):
            continue  # it cannot ask for its order: its silence is judged, as its pod's
        causes += _silent(observed, status, key, pod, seen, now)
        causes += _unregistered(status, key, pod, seen, now - _ordered_at(observed, status, key, pod))
    return causes


def hangs_after_seconds(observed: Observed) -> float:
    """After which silence a rank hangs.

    Ranks beat as often as the time-out asks that was in force when their epoch was opened. One that was made much
    shorter since would call all of them silent.
    """
    interval = observed.coordinator.beat_interval_seconds if observed.coordinator is not None else 0.0
    return max(observed.policy.heartbeat_timeout_seconds, BEATS_AWAITED * interval)


def overdue_in(status: RLJobStatus, rank: RankObservation, timeout_seconds: float, now: float) -> float:
    """Seconds from now until the rank hangs, if nothing more is heard of it; <= 0: it hangs."""
    left = timeout_seconds - seen_seconds(status, rank.beat_age_seconds, now)
    return max(left, rank.busy_left_seconds or 0.0) if rank.busy is not None else left


def _silent(
    observed: Observed, status: RLJobStatus, key: PodKey, pod: PodStatus, seen: PodObservation, now: float
) -> list[Cause]:
    timeout = hangs_after_seconds(observed)
    if seen.poll_age_seconds > max(timeout / 2, POLL_SLACK_SECONDS):
        return []
    running = {process.incarnation for process in _of_order(status, pod, seen) if process.exit_code is None}
    return [
        Cause(
            f"hang/{rank.incarnation}",
            Reason.HANG,
            key,
            f"{key}.{rank.rank} has not beaten in {rank.beat_age_seconds:.0f} s; {_last_known(rank)}",
        )
        for rank in seen.ranks
        if rank.incarnation in running and overdue_in(status, rank, timeout, now) < 0
    ]


def _unregistered(
    status: RLJobStatus, key: PodKey, pod: PodStatus, seen: PodObservation, ordered_ago: float
) -> list[Cause]:
    """The first time the ranks are started again, as the table says; the second time the whole pod."""
    if status.restart.opened < status.restart.epoch or ordered_ago <= REGISTER_LIMIT_SECONDS:
        return []
    processes = _of_order(status, pod, seen)
    registered = {rank.incarnation for rank in seen.ranks}
    late = [process for process in processes if process.exit_code is None and process.incarnation not in registered]
    if processes and not late:
        return []
    who = f"{key}.{late[0].rank} has not registered with the coordinator" if late else f"{key} has not started a rank"
    epoch, generation = status.restart.epoch, pod.generation
    what = f"{who} in {ordered_ago:.0f} s"
    id_ = f"hang/{late[0].incarnation}" if late else f"order/{pod.life}/{epoch}/{generation}"
    again = pod.unregistered > 0
    message = what + (", for the second time: the pod is replaced" if again else "")
    return [Cause(id_, Reason.HANG, key, message, lost=again, unregistered=True)]


def _of_order(status: RLJobStatus, pod: PodStatus, seen: PodObservation) -> list[RankProcess]:
    order = (status.restart.epoch, pod.generation)
    return [process for process in seen.processes if (process.epoch, process.generation) == order]


def _ordered_at(observed: Observed, status: RLJobStatus, key: PodKey, pod: PodStatus) -> float:
    """When the pod can have taken its order at the earliest."""
    fact = observed.fact(key)
    up_at = (fact.up_at or fact.started_at) if fact is not None else 0.0
    return max(pod.ordered_at, status.restart.opened_at or 0.0, up_at, heard_since(status))


def _last_known(rank: RankObservation) -> str:
    if rank.busy is not None:
        return f"it was busy with {rank.busy.what}, which it had announced for {rank.busy.seconds:g} s"
    if rank.waiting is not None:
        return f"it was waiting for {rank.waiting}"
    return "it was at work and had not announced anything long"
