"""activeDeadlineSeconds: the job fails when it has run for that long. Suspended time is not run time."""

from rljob_api.status import RLJobStatus
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason
from rljob_operator.core.verdicts import Fail


def deadline(observed: Observed, status: RLJobStatus, now: float) -> Fail | None:
    """The failure of a job that has run for too long."""
    limit, at = observed.wishes.active_deadline_seconds, deadline_at(observed, status)
    if at is None or now < at:
        return None
    step = status.training.step
    done = "no step was trained" if step is None else f"step {step} was the last"
    message = f"the job has run for activeDeadlineSeconds ({limit} s); {done} of {observed.num_rollouts}"
    return Fail(Reason.DEADLINE_EXCEEDED, message)


def deadline_at(observed: Observed, status: RLJobStatus) -> float | None:
    """Unix time at which the job will have run for too long; None: never."""
    limit = observed.wishes.active_deadline_seconds
    if limit is None or status.started_at is None:
        return None
    return status.started_at + limit - status.active_seconds
