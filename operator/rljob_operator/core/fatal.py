"""Failures that no restart can help: the job fails at once, with the sentence of whoever saw it."""

from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_api.status import PodStatus, RLJobStatus
from rljob_api.wire.failures import Failure, FailureKind
from rljob_operator.core.failures import current_failures
from rljob_operator.core.infrastructure import failing
from rljob_operator.core.observed import Observed, PodFact, PodState
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import staying
from rljob_operator.core.verdicts import Fail
from rljob_operator.core.wording import last_line, quoted


def fatal(observed: Observed, status: RLJobStatus, now: float) -> Fail | None:
    """A configuration error, a failure that a role named, or infrastructure that does not stay up."""
    for failure in current_failures(observed, status):
        if failure.exit_code == EXIT_BAD_MANIFEST:
            return Fail(Reason.CONFIGURATION_ERROR, _sentence(failure), failure.pod.role)
        if failure.kind is FailureKind.REPORTED:
            return Fail(Reason.REPORTED, failure.message, failure.pod.role)
    for key, pod in staying(status):
        fact = observed.fact(key)
        if fact is not None and _refused(fact, pod):
            said = quoted(fact.last_words)
            return Fail(Reason.CONFIGURATION_ERROR, f"the launcher of {key} refuses its configuration{said}", key.role)
    return failing(observed.infrastructure, now)


def _refused(fact: PodFact, pod: PodStatus) -> bool:
    """Also when the container was started again meanwhile: its next life would say the same."""
    same_pod = pod.life.rpartition("/")[0] == fact.life.rpartition("/")[0]
    over = fact.state is PodState.EXITED or fact.life != pod.life
    return same_pod and over and fact.exit_code == EXIT_BAD_MANIFEST


def _sentence(failure: Failure) -> str:
    said = last_line(failure.last_words)
    return f"{failure.pod}: {said}" if said else failure.message
