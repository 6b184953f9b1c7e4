"""Which reported failures are news: those of the current epoch and generation. All others were restarted already."""

from rljob_api.names import EXIT_SUCCEEDED
from rljob_api.status import RLJobStatus
from rljob_api.wire.failures import Failure, FailureKind
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import pods, staying
from rljob_operator.core.verdicts import Cause

_REASONS: dict[str, Reason] = {
    FailureKind.RANK_EXITED: Reason.RANK_EXITED,
    FailureKind.HANG: Reason.HANG,
    FailureKind.ROWS_LOST: Reason.ROWS_LOST,
}
"""Kinds that the restart table has to answer. Lost launchers are seen by the platform, engines by their launchers."""


def current_failures(observed: Observed, status: RLJobStatus) -> list[Failure]:
    """Failures of the lives that the job counts on now, oldest first."""
    if observed.coordinator is None:
        return []
    generations = {key: pod.generation for key, pod in pods(status)}
    return [
        failure
        for failure in observed.coordinator.failures
        if failure.epoch == status.restart.epoch and _generation_matters(failure, generations.get(failure.pod))
    ]


def reported(observed: Observed, status: RLJobStatus) -> list[Cause]:
    """A cause for every failure that the table has to answer."""
    return [
        Cause(
            id=failure.id,
            reason=_REASONS[failure.kind],
            pod=failure.pod,
            message=failure.message,
            only_global=failure.kind is FailureKind.ROWS_LOST,
            exit_code=failure.exit_code,
        )
        for failure in current_failures(observed, status)
        if failure.kind in _REASONS and failure.exit_code != EXIT_SUCCEEDED and _is_news(status, failure)
    ]


def _is_news(status: RLJobStatus, failure: Failure) -> bool:
    """A replica that is told to leave may die: that is what it is told. What it says of the whole job stands."""
    leaving = failure.pod not in {key for key, _ in staying(status)}
    return failure.kind is FailureKind.ROWS_LOST or not leaving


def _generation_matters(failure: Failure, current: int | None) -> bool:
    """What is said of the whole job is not bound to the generation of the pod that said it."""
    if failure.kind in (FailureKind.ROWS_LOST, FailureKind.REPORTED):
        return True
    return current is not None and failure.generation == current
