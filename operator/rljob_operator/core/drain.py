"""Interruption and suspension: the actor saves, then everything stops. Nothing is restarted on the way."""

from collections.abc import Iterable

from rljob_api.role_traits import TRAITS
from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.times import seconds
from rljob_api.wire.observation import PodObservation, RankObservation
from rljob_api.wire.ranks import RankState
from rljob_operator.core.conditions import find
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import is_known, pods
from rljob_operator.core.verdicts import Drain, Interrupt, Suspend

DRAIN_LIMIT_SECONDS = 60.0
"""An actor that has not saved by then, and has not announced that it needs longer for its bytes, is stopped; its last
recorded checkpoint is what the job resumes from. Its launcher kills it after stallTimeoutSeconds."""


def drain(observed: Observed, status: RLJobStatus, now: float) -> Drain | Interrupt | Suspend | None:
    """Draining while an actor still has something to save, then the interruption or the suspension."""
    if not stopping(observed, status):
        return None
    if observed.interrupted_at is not None:
        why = _drained(observed, status, now, observed.interrupted_at)
        return Drain() if why is None else Interrupt(why)
    why = _drained(observed, status, now, _suspending_since(status, now))
    return Drain(ConditionType.SUSPENDED) if why is None else Suspend(why)


def stopping(observed: Observed, status: RLJobStatus) -> bool:
    """Whether the job is on its way to an interruption or suspension.

    A drain that was begun is finished: the actor is told already.
    """
    return observed.interrupted_at is not None or observed.wishes.suspend or is_draining(status)


def is_draining(status: RLJobStatus) -> bool:
    """Whether the actor was told to save before everything stops."""
    return find(status, ConditionType.INTERRUPTED) is not None or _suspending(status)


def drained_at(observed: Observed, status: RLJobStatus) -> float | None:
    """When draining ends, unless the actor announces more; None while nothing drains."""
    if observed.interrupted_at is not None:
        return observed.interrupted_at + DRAIN_LIMIT_SECONDS
    return _suspending_since(status, 0.0) + DRAIN_LIMIT_SECONDS if _suspending(status) else None


def at_work(seen: PodObservation, epoch: int) -> list[RankObservation]:
    """Ranks of this epoch that have something to save: one that has only started holds nothing new."""
    running = {p.incarnation for p in seen.processes if p.exit_code is None and p.epoch == epoch}
    return [rank for rank in seen.ranks if rank.state is RankState.READY and rank.incarnation in running]


def has_time(ranks: Iterable[RankObservation], waited: float) -> bool:
    """Whether savers that were ordered to leave so long ago are waited for."""
    return waited < DRAIN_LIMIT_SECONDS or any((rank.busy_left_seconds or 0.0) > 0 for rank in ranks)


def _suspending(status: RLJobStatus) -> bool:
    condition = find(status, ConditionType.SUSPENDED)
    return condition is not None and condition.status == "False" and condition.reason == Reason.DRAINING.value


def _suspending_since(status: RLJobStatus, now: float) -> float:
    condition = find(status, ConditionType.SUSPENDED)
    return seconds(condition.last_transition_time) if condition is not None and _suspending(status) else now


def _drained(observed: Observed, status: RLJobStatus, now: float, since: float) -> str | None:
    """Why nobody is waited for any more; None while an actor saves."""
    saving = _saving(observed, status)
    if not has_time(saving, now - since):
        return f"the actor had not saved after {now - since:.0f} s"
    return None if saving or _may_be_saving_unseen(observed, status) else "stopped"


def _may_be_saving_unseen(observed: Observed, status: RLJobStatus) -> bool:
    """A coordinator that does not answer for a moment, or is new, must not cost what the actor has trained."""
    savers = [(key, pod) for key, pod in pods(status) if TRAITS[key.role].saves]
    unseen = any(pod.ready and not is_known(observed, key, pod) for key, pod in savers)
    return unseen and status.restart.opened == status.restart.epoch


def _saving(observed: Observed, status: RLJobStatus) -> list[RankObservation]:
    """Ranks of an actor of the current epoch that are at work: one that has only started holds nothing new."""
    if observed.coordinator is None or observed.coordinator.epoch != status.restart.epoch:
        return []
    savers = [(key, pod) for key, pod in pods(status) if TRAITS[key.role].saves]
    seen = [observed.seen(key, pod.life) for key, pod in savers]
    return [rank for pod in seen if pod is not None for rank in at_work(pod, status.restart.epoch)]
