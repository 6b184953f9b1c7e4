"""Hangs: a rank whose main loop has not beaten in time, and is not busy by its own word.

A rank that announced long work is left alone until its own deadline is over. Before its registration a rank cannot
beat: there the limit of registration holds.
"""

from rljob_api.status import PodStatus, RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import RankProcess
from rljob_api.wire.observation import PodObservation, RankObservation
from rljob_operator.core.observed import Observed
from rljob_operator.core.pods import REGISTER_LIMIT_SECONDS
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import pods
from rljob_operator.core.verdicts import Cause


def hanging(observed: Observed, status: RLJobStatus, now: float) -> list[Cause]:
    """A cause for every running rank that hangs."""
    causes = []
    for key, pod in pods(status):
        seen = observed.seen(key, pod.life)
        for process in _current(status, pod, seen) if seen is not None else []:
            message = _why(observed, seen, key, process, now - pod.ordered_at) if seen is not None else None
            if message is not None:
                causes.append(Cause(f"hang/{process.incarnation}", Reason.HANG, key, message))
    return causes


def _current(status: RLJobStatus, pod: PodStatus, seen: PodObservation) -> list[RankProcess]:
    """Processes that run in the current life; one that has exited is not a hang."""
    order = (status.restart.epoch, pod.generation)
    return [p for p in seen.processes if p.exit_code is None and (p.epoch, p.generation) == order]


def _why(observed: Observed, seen: PodObservation, key: PodKey, process: RankProcess, ordered_ago: float) -> str | None:
    name = f"{key}.{process.rank}"
    rank = next((rank for rank in seen.ranks if rank.incarnation == process.incarnation), None)
    if rank is None:
        late = ordered_ago > REGISTER_LIMIT_SECONDS
        return f"{name} has not registered with the coordinator in {ordered_ago:.0f} s" if late else None
    if not _overdue(rank, observed.policy.heartbeat_timeout_seconds):
        return None
    return f"{name} has not beaten in {rank.beat_age_seconds:.0f} s; {_last_known(rank)}"


def _overdue(rank: RankObservation, timeout_seconds: float) -> bool:
    if rank.beat_age_seconds <= timeout_seconds:
        return False
    return rank.busy is None or rank.busy_left_seconds is None or rank.busy_left_seconds <= 0


def _last_known(rank: RankObservation) -> str:
    if rank.busy is not None:
        return f"it was busy with {rank.busy.what}, which it had announced for {rank.busy.seconds:g} s"
    if rank.waiting is not None:
        return f"it was waiting for {rank.waiting}"
    return "it was at work and had not announced anything long"
