"""Notices: failures that restart nothing, told to the user all the same."""

from collections.abc import Iterable

from rljob_api.names import EXIT_SUCCEEDED
from rljob_api.status import RLJobStatus
from rljob_api.wire.failures import FailureKind
from rljob_operator.core.decision import Event
from rljob_operator.core.failures import current_failures
from rljob_operator.core.observed import Observed
from rljob_operator.core.pods import never_ran
from rljob_operator.core.reasons import Reason
from rljob_operator.core.verdicts import Cause


def notices(observed: Observed, status: RLJobStatus, now: float) -> tuple[Event, ...]:
    """Engines that their launchers restart, and failures of lives that are restarted already."""
    if observed.coordinator is None:
        return ()
    current = {failure.id for failure in current_failures(observed, status)}
    events = []
    for failure in observed.coordinator.failures:
        role = failure.pod.role
        if failure.kind is FailureKind.ENGINE_EXITED:
            events.append(Event(now, Reason.ENGINE_EXITED, failure.message, role))
        elif failure.kind is not FailureKind.LAUNCHER_LOST and failure.id not in current:
            life = f"epoch {failure.epoch}, generation {failure.generation}"
            events.append(Event(now, Reason.EARLIER_LIFE, f"{failure.message} ({life}: restarted already)", role))
        elif failure.exit_code == EXIT_SUCCEEDED:
            events.append(Event(now, Reason.RANK_EXITED, f"{failure.message}; that is no failure", role))
    return tuple(events)


def replacements(observed: Observed, status: RLJobStatus, lost: Iterable[Cause], now: float) -> tuple[Event, ...]:
    """Of the pods whose lives are given up now: those that had not run."""
    return tuple(
        Event(
            now,
            cause.reason,
            f"{cause.message.rstrip('.')}; it had not run yet, and another one takes its place",
            cause.pod.role,
        )
        for cause in lost
        if never_ran(observed, status, cause)
    )
