"""Ends: what ends a job for good, and when a job that has ended is deleted.

Pure. Called by `decide`, in this order: work that is done is not undone, and no restart can help the rest.
"""

from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_api.spec import RestartPolicySpec
from rljob_api.status import PodStatus, RLJobStatus
from rljob_api.wire.failures import Failure, FailureKind, Hopeless
from rljob_operator.core.causes import Causes, cannot_start, engines_can_work
from rljob_operator.core.infrastructure import failing
from rljob_operator.core.observed import Observed, PodFact, PodState
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import staying
from rljob_operator.core.verdicts import Fail, RestartGlobal, Succeed
from rljob_operator.core.wording import last_line, quoted

_HOPELESS: dict[str | None, Reason] = {
    Hopeless.ENGINE_CANNOT_START: Reason.ENGINE_CANNOT_START,
    Hopeless.ENGINE_MISMATCH: Reason.ENGINE_MISMATCH,
}


def finished(observed: Observed) -> Succeed | None:
    """Version numRollouts is recorded, not only published: a success that a crash could take back is none."""
    coordinator = observed.coordinator
    if coordinator is None or coordinator.recorded is None or coordinator.recorded < observed.num_rollouts:
        return None
    return Succeed()


def deadline(observed: Observed, status: RLJobStatus, now: float) -> Fail | None:
    """The failure of a job that has run for activeDeadlineSeconds. Suspended time is not run time."""
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


def fatal(observed: Observed, status: RLJobStatus, causes: Causes, now: float) -> Fail | None:
    """A configuration error, a failure that a role named, or infrastructure that does not stay up."""
    for failure in causes.failures:
        if failure.exit_code == EXIT_BAD_MANIFEST:
            return Fail(Reason.CONFIGURATION_ERROR, _sentence(failure), failure.pod.role)
        if failure.kind is FailureKind.REPORTED:
            return Fail(_HOPELESS.get(failure.hopeless, Reason.REPORTED), failure.message, failure.pod.role)
        if cannot_start(failure) and not engines_can_work(status):
            return Fail(Reason.ENGINE_CANNOT_START, failure.message, failure.pod.role)
    for key, pod in staying(status):
        fact = observed.fact(key)
        if fact is not None and _refused(fact, pod):
            said = quoted(fact.last_words)
            return Fail(Reason.CONFIGURATION_ERROR, f"the launcher of {key} refuses its configuration{said}", key.role)
    return failing(observed.infrastructure, now)


def limited(policy: RestartPolicySpec, status: RLJobStatus, verdict: RestartGlobal) -> RestartGlobal | Fail:
    """The restart, or the failure of the job if it would be one too many. What the user started himself is none."""
    limit = policy.max_global_restarts
    if not verdict.counts or status.restart.counted_towards_max < limit:
        return verdict
    message = (
        f"{verdict.message}. That needs global restart {limit + 1}, but restartPolicy.maxGlobalRestarts is {limit}. "
        "Cure the cause, or raise the limit."
    )
    return Fail(Reason.MAX_GLOBAL_RESTARTS, message, verdict.role)


def deleted_at(observed: Observed, status: RLJobStatus) -> float | None:
    """Unix time from which an ended job is to be deleted, by ttlSecondsAfterFinished; None: never."""
    ttl = observed.wishes.ttl_seconds_after_finished
    return None if ttl is None or status.ended_at is None else status.ended_at + ttl


def _refused(fact: PodFact, pod: PodStatus) -> bool:
    """Also when the container was started again meanwhile: its next life would say the same."""
    same_pod = pod.life.rpartition("/")[0] == fact.life.rpartition("/")[0]
    over = fact.state is PodState.EXITED or fact.life != pod.life
    return same_pod and over and fact.exit_code == EXIT_BAD_MANIFEST


def _sentence(failure: Failure) -> str:
    said = last_line(failure.last_words)
    return f"{failure.pod}: {said}" if said else failure.message
