"""Opening: when an epoch that is decided may be opened. Until then the old one has ended only by decision."""

from rljob_api.status import RLJobStatus
from rljob_operator.core.observed import Observed, PodState
from rljob_operator.core.roster import pods


def held(observed: Observed, status: RLJobStatus, now: float) -> str | None:
    """Why the epoch is not opened now, or None.

    What the epoch starts must stay: pods that an update or a smaller role takes away go first.
    """
    until = status.restart.backoff_until
    if until is not None and now < until:
        delay = until - (status.restart.decided_at or 0.0)
        return f"it is opened {round(delay, 1):g} s after it was decided (restartPolicy.backoff)"
    if observed.wishes.outdated:
        return "pods of an older template are still there"
    members = {key for key, _ in pods(status)}
    over = [str(fact.pod) for fact in observed.pods if fact.pod not in members and fact.state is not PodState.EXITED]
    return f"no longer wanted and still there: {', '.join(over)}" if observed.on_cluster and over else None
