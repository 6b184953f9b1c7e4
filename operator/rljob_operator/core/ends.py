"""Ends: what ends a job for good, when an ended job has nothing left to wait for, and when it is deleted.

`decide` asks in this order: finished work is not undone by a later failure, and no restart can help the rest. Pure.
"""

from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_api.spec.restart import RestartPolicySpec
from rljob_api.status import PodStatus, RLJobStatus
from rljob_api.times import seconds
from rljob_api.wire.epochs import PodPhase
from rljob_api.wire.failures import Failure, FailureKind, Hopeless
from rljob_operator.core.causes import Causes, cannot_start, engines_can_work
from rljob_operator.core.conditions import terminal
from rljob_operator.core.decision import Fail, RestartGlobal, Succeed
from rljob_operator.core.infrastructure import failing
from rljob_operator.core.membership import remaining
from rljob_operator.core.observed import Observed, PodFact, PodState, pod_uid
from rljob_operator.core.reasons import Reason, last_line, quoted

_HOPELESS: dict[str | None, Reason] = {
    Hopeless.ENGINE_CANNOT_START: Reason.ENGINE_CANNOT_START,
    Hopeless.ENGINE_MISMATCH: Reason.ENGINE_MISMATCH,
}


def ending(observed: Observed, status: RLJobStatus, causes: Causes, now: float) -> Succeed | Fail | None:
    """The job's success, or else its failure by a deadline, an error that no restart cures, or its infrastructure."""
    return (
        _finished(observed, status)
        or _deadline(observed, status, now)
        or _fatal(observed, status, causes)
        or failing(observed, status, now)
    )


def ends_at(observed: Observed, status: RLJobStatus, now: float) -> list[float]:
    """Unix times at which something here is due: of a job that is over its deletion, else its deadline or its kill."""
    over = is_over(observed, status, now)
    times = (deleted_at(observed, status),) if over else (_over_at(status), _deadline_at(observed, status))
    return [at for at in times if at is not None]


def _finished(observed: Observed, status: RLJobStatus) -> Succeed | None:
    """The last version is recorded, not only published: a success that a crash could take back is none.

    The last one is numRollouts, which is evaluated first where the job has sets, or the one at which stopWhen holds.
    """
    coordinator = observed.coordinator
    if coordinator is None or coordinator.recorded is None:
        return None
    if coordinator.recorded >= observed.num_rollouts:
        return None if coordinator.is_evaluating_last else Succeed()
    stop = coordinator.stop
    if stop is None or coordinator.recorded < stop.version:
        return None
    # By an epoch that a resumed job leaves behind it was reached with the stopWhen of before.
    return Succeed(stop) if coordinator.epoch == status.restart.epoch else None


def _deadline(observed: Observed, status: RLJobStatus, now: float) -> Fail | None:
    """The failure of a job that has run for activeDeadlineSeconds. Suspended time is not run time."""
    limit, at = observed.request.active_deadline_seconds, _deadline_at(observed, status)
    if at is None or now < at:
        return None
    step = status.training.step
    done = "no step was trained" if step is None else f"step {step} was the last"
    message = f"the job has run for activeDeadlineSeconds ({limit} s); {done} of {observed.num_rollouts}"
    return Fail(Reason.DEADLINE_EXCEEDED, message)


def _deadline_at(observed: Observed, status: RLJobStatus) -> float | None:
    """Unix time at which the job will have run for too long; None: never."""
    limit = observed.request.active_deadline_seconds
    if limit is None or status.started_at is None:
        return None
    return status.started_at + limit - status.active_seconds


def _fatal(observed: Observed, status: RLJobStatus, causes: Causes) -> Fail | None:
    """A configuration error, or a failure that a role named."""
    for failure in causes.failures:
        if failure.exit_code == EXIT_BAD_MANIFEST:
            return Fail(Reason.CONFIGURATION_ERROR, _sentence(failure), failure.pod.role)
        if failure.kind is FailureKind.REPORTED:
            return Fail(_HOPELESS.get(failure.hopeless, Reason.REPORTED), failure.message, failure.pod.role)
        if cannot_start(failure) and not engines_can_work(status):
            return Fail(Reason.ENGINE_CANNOT_START, failure.message, failure.pod.role)
    for key, pod in remaining(status) if not observed.job_file_was_edited else ():
        fact = observed.facts.get(key)
        if fact is not None and _refused(fact, pod):
            line = quoted(fact.last_message)
            return Fail(Reason.CONFIGURATION_ERROR, f"the launcher of {key} refuses its configuration{line}", key.role)
    return None


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
    ttl = observed.request.ttl_seconds_after_finished
    return None if ttl is None or status.ended_at is None else status.ended_at + ttl


def _refused(fact: PodFact, pod: PodStatus) -> bool:
    """Also when the container was started again meanwhile: its next incarnation would end the same way."""
    same_pod = pod_uid(pod.incarnation) == pod_uid(fact.incarnation)
    over = fact.state is PodState.EXITED or fact.incarnation != pod.incarnation
    return same_pod and over and fact.exit_code == EXIT_BAD_MANIFEST


def _sentence(failure: Failure) -> str:
    line = last_line(failure.last_words)
    return f"{failure.pod}: {line}" if line else failure.message


DONE_LIMIT_SECONDS = 10.0
"""Launchers that have not ended by then are killed: what they should have saved is saved."""


def _over_at(status: RLJobStatus) -> float | None:
    """When what still runs of an ended job is killed."""
    ended = terminal(status)
    return None if ended is None else seconds(ended.last_transition_time) + DONE_LIMIT_SECONDS


def is_over(observed: Observed, status: RLJobStatus, now: float) -> bool:
    """Whether an ended job has nothing left to wait for."""
    at = _over_at(status)
    if at is None:
        return False
    running = any(_is_awaited(observed, fact) for fact in observed.pods)
    is_not_open = status.restart.opened < status.restart.epoch
    is_infrastructure_stopped = any(process.stopped for process in observed.infrastructure)
    return not running or is_not_open or is_infrastructure_stopped or now >= at


def _is_awaited(observed: Observed, fact: PodFact) -> bool:
    """What is stopped never leaves: it is killed with what is left."""
    return fact.state is not PodState.EXITED and not fact.stopped and not _is_idle(observed, fact)


def _is_idle(observed: Observed, fact: PodFact) -> bool:
    """A launcher in a pod stays when it is done, so that the kubelet starts nothing again: its report counts."""
    seen = observed.observations.get((fact.pod, fact.incarnation))
    if seen is None or seen.carried is None or seen.carried.phase is not PodPhase.DONE:
        return False
    return not seen.engines and all(process.exit_code is not None for process in seen.processes)
