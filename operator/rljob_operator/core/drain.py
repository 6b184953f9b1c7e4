"""Interruption: the actor saves, then everything stops. Nothing is restarted on the way."""

from rljob_api.names import Role
from rljob_api.status import RLJobStatus
from rljob_api.wire.observation import PodObservation
from rljob_api.wire.ranks import RankState
from rljob_operator.core.observed import Observed
from rljob_operator.core.roster import pods
from rljob_operator.core.verdicts import Drain, Interrupt

DRAIN_LIMIT_SECONDS = 60.0
"""An actor that has not saved by then is stopped; its last recorded checkpoint is what the job resumes from."""


def drain(observed: Observed, status: RLJobStatus, now: float) -> Drain | Interrupt | None:
    """Draining while an actor still has something to save, then the interruption."""
    if observed.interrupted_at is None:
        return None
    if now >= observed.interrupted_at + DRAIN_LIMIT_SECONDS:
        return Interrupt(f"the actor had not saved after {DRAIN_LIMIT_SECONDS:.0f} s")
    if _saving(observed, status):
        return Drain()
    return Interrupt("stopped")


def _saving(observed: Observed, status: RLJobStatus) -> bool:
    """Whether an actor of the current epoch is at work: one that has only started holds nothing new."""
    if observed.coordinator is None or observed.coordinator.epoch != status.restart.epoch:
        return False
    actors = [(key, pod) for key, pod in pods(status) if key.role is Role.ACTOR]
    seen = [observed.seen(key, pod.life) for key, pod in actors]
    return any(_at_work(status, pod) for pod in seen if pod is not None)


def _at_work(status: RLJobStatus, seen: PodObservation) -> bool:
    running = {p.incarnation for p in seen.processes if p.exit_code is None and p.epoch == status.restart.epoch}
    return any(rank.state is RankState.READY and rank.incarnation in running for rank in seen.ranks)
