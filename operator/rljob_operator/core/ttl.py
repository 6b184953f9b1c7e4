"""ttlSecondsAfterFinished: when a job that has ended is deleted."""

from rljob_api.status import RLJobStatus
from rljob_operator.core.observed import Observed


def deleted_at(observed: Observed, status: RLJobStatus) -> float | None:
    """Unix time from which the job is to be deleted; None: never."""
    ttl = observed.wishes.ttl_seconds_after_finished
    return None if ttl is None or status.ended_at is None else status.ended_at + ttl
