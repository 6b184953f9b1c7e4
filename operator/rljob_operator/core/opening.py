"""Opening: when an epoch that is decided may be opened. Until then the old one has ended only by decision.

Pure. Asked by `outcome` for the back-off of a global restart, and by `orders` and `readiness` for what holds it up.
"""

from rljob_api.spec import BackoffSpec
from rljob_api.status import RLJobStatus
from rljob_operator.core.observed import Observed, Obstacle, PodState
from rljob_operator.core.parting import saves_first
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import pods


def consecutive(status: RLJobStatus) -> int:
    """The n of the global restart that is being decided: 1 again once a checkpoint was recorded after the last one."""
    return 1 if has_recorded(status) else status.restart.consecutive + 1


def has_recorded(status: RLJobStatus) -> bool:
    """Whether a checkpoint was recorded after the last global restart."""
    recorded, before = status.training.checkpoint, status.restart.checkpoint
    return recorded is not None and (before is None or recorded > before)


def delay_seconds(spec: BackoffSpec, n: int) -> float:
    """The delay of the n-th restart in a row: initialSeconds * factor^(n - 1), at most maxSeconds."""
    if spec.initial_seconds == 0:
        return 0.0
    # A float overflows at factor^1024; the limit is reached long before n is that large.
    exponent = min(n - 1, 256)
    return float(min(spec.max_seconds, spec.initial_seconds * spec.factor**exponent))


def held(observed: Observed, status: RLJobStatus, now: float) -> Obstacle | None:
    """Why the epoch is not opened now, or None.

    What the epoch starts must stay: pods that an update or a smaller role takes away go first.
    """
    until = status.restart.backoff_until
    if until is not None and now < until:
        delay = until - (status.restart.decided_at or 0.0)
        sentence = f"it is opened {round(delay, 1):g} s after it was decided (restartPolicy.backoff)"
        return Obstacle(Reason.BACKING_OFF.value, sentence)
    if saves_first(observed, status, now):
        return Obstacle(Reason.DRAINING.value, "the actor saves first")
    if observed.wishes.outdated:
        return Obstacle(Reason.PODS_LEAVING.value, "pods of an older template are still there")
    members = {key for key, _ in pods(status)}
    over = [str(fact.pod) for fact in observed.pods if fact.pod not in members and fact.state is not PodState.EXITED]
    if not observed.on_cluster or not over:
        return None
    return Obstacle(Reason.PODS_LEAVING.value, f"no longer wanted and still there: {', '.join(over)}")
