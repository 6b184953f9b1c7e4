"""Restart policies: the restart table with the user's failure rules, requested restarts, control state.

Requested restarts and changed specs never count. An epoch of the coordinator below the one that was opened means a lost
tail of the control state; one above it, or the same under another decision, means a lost status: both open a new
epoch. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rljob_api.names import Role, Scope
from rljob_api.roles import TRAITS
from rljob_api.spec.restart import FailureRuleSpec, RestartPolicySpec, RestartRequestSpec, RuleAction
from rljob_api.status import RLJobStatus
from rljob_api.wire.observation import ServerState
from rljob_operator.core.decision import Cause, Fail, RestartGlobal, RestartInPlace
from rljob_operator.core.gang_release import released
from rljob_operator.core.membership import remaining
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason

_SIGNAL_BASE = 128
"""A container runtime reports death by signal N as exit code 128 + N."""


def row(policy: RestartPolicySpec, role: Role) -> Scope:
    """The row of `role`, overridden (where it may be) or default."""
    traits = TRAITS[role]
    return traits.scope if traits.fixed_because else policy.table.row(role) or traits.scope


def remembered(policy: RestartPolicySpec, times: Sequence[float], now: float) -> list[float]:
    """The failures that windowSeconds has not made forgotten."""
    window = policy.window_seconds
    return [at for at in times if window is None or at > now - window]


def restart(
    observed: Observed, status: RLJobStatus, causes: Iterable[Cause], now: float
) -> Fail | RestartGlobal | RestartInPlace | None:
    """What the control state, a changed spec, failures, the user or a gang without room restarts: the first of these.

    The end, where a rule of the user asks for it.
    """
    return (
        _control_state(observed, status)
        or _spec_change(observed, status)
        or _failed_or_requested(observed, status, causes, now)
        or released(observed, status, now)
    )


def _failed_or_requested(
    observed: Observed, status: RLJobStatus, causes: Iterable[Cause], now: float
) -> Fail | RestartGlobal | RestartInPlace | None:
    """What the failures that are seen now restart, all together, and beside them what the user asked for."""
    verdict = _failed(observed, status, causes, now)
    if verdict is None or isinstance(verdict, RestartInPlace):
        return _requested(observed, status, beside=verdict) or verdict
    return verdict


def _failed(
    observed: Observed, status: RLJobStatus, causes: Iterable[Cause], now: float
) -> Fail | RestartGlobal | RestartInPlace | None:
    seen: list[Cause] = []
    for cause in causes:
        answer = _ruled(observed.policy, cause)
        if isinstance(answer, Fail):
            return answer
        seen.append(answer)
    if not seen:
        return None
    counts = _earlier(observed.policy, status, now)
    decisive: list[tuple[Cause, str]] = []
    for cause in seen:
        counts[cause.pod.role] += cause.counts
        why = _why_global(observed.policy, cause, counts[cause.pod.role])
        if why is not None:
            decisive.append((cause, why))
    if not decisive:
        return RestartInPlace(tuple(seen))
    first, why = next(((cause, why) for cause, why in decisive if cause.counts), decisive[0])
    others = len(seen) - 1
    why += "" if first.counts else " (not counted)"
    message = first.message + why + (f" (and {others} more at the same time)" if others else "")
    ids = tuple(cause.id for cause in seen)
    return RestartGlobal(first.reason, message, tuple(seen), first.pod.role, ids, counts=first.counts)


def _earlier(policy: RestartPolicySpec, status: RLJobStatus, now: float) -> Counter[Role]:
    return Counter({role.name: len(remembered(policy, role.failure_times, now)) for role in status.roles})


def _why_global(policy: RestartPolicySpec, cause: Cause, count: int) -> str | None:
    """What to add to the message of a failure that restarts the job, or None if it stays in place."""
    if cause.only_global or row(policy, cause.pod.role) is Scope.GLOBAL:
        return ""
    if cause.counts and count >= policy.threshold:
        return f"; failure {count} of {cause.pod.role} since the last global restart (threshold {policy.threshold})"
    return None


def _ruled(policy: RestartPolicySpec, cause: Cause) -> Cause | Fail:
    """The cause as the first rule that matches has it, or the failure of the job."""
    rule = next((rule for rule in policy.failure_rules if _matches(rule, cause)), None)
    if rule is None:
        return cause
    if rule.action is RuleAction.FAIL_JOB:
        message = f"{cause.message.rstrip('.')}; restartPolicy.failureRules: {rule.name} fails the job"
        return Fail(Reason.FAILURE_RULE, message, cause.pod.role)
    return replace(cause, counts=rule.action is RuleAction.COUNT)


def _matches(rule: FailureRuleSpec, cause: Cause) -> bool:
    if rule.role is not None and rule.role is not cause.pod.role:
        return False
    codes = _spellings(cause.exit_code)
    return bool(codes.intersection(rule.exit_codes) or set(cause.pod_reasons).intersection(rule.pod_reasons))


def _spellings(exit_code: int | None) -> set[int]:
    """A death by signal 9 is -9 to a parent process and 137 to a container runtime: both are meant by either."""
    if exit_code is None:
        return set()
    if exit_code < 0:
        return {exit_code, _SIGNAL_BASE - exit_code}
    return {exit_code, _SIGNAL_BASE - exit_code} if exit_code > _SIGNAL_BASE else {exit_code}


def _spec_change(observed: Observed, status: RLJobStatus) -> RestartGlobal | None:
    """A new epoch from the checkpoint where what the epoch runs with is not what the spec has now."""
    revision = observed.request.revision
    if not revision or revision == status.restart.revision:
        return None
    message = f"the spec was changed (generation {observed.request.generation})"
    return RestartGlobal(Reason.SPEC_CHANGED, message, ids=(f"spec/{revision}",), counts=False, by_user=True)


def _requested(
    observed: Observed, status: RLJobStatus, beside: RestartInPlace | None
) -> RestartGlobal | RestartInPlace | None:
    """What spec.restartRequest asks for, once for every id, together with what restarts in place anyway; else None."""
    request = observed.request.restart_request
    if request is None or request.id == status.restart.handled_request:
        return None
    if request.role is None or TRAITS[request.role].fixed_because:
        message, id_ = _sentence(request), f"request/{request.id}"
        return RestartGlobal(
            Reason.RESTART_REQUESTED, message, role=request.role, ids=(id_,), counts=False, by_user=True
        )
    failed = beside.causes if beside is not None else ()
    there = {cause.pod for cause in failed}
    asked = tuple(
        Cause(f"request/{request.id}/{key}", Reason.RESTART_REQUESTED, key, _sentence(request), counts=False)
        for key, _ in remaining(status)
        if key.role is request.role and key not in there
    )
    return RestartInPlace((*failed, *asked), request.id)


def _sentence(request: RestartRequestSpec) -> str:
    return f"a restart was requested ({request.id})" + (f": {request.reason}" if request.reason else "")


def _control_state(observed: Observed, status: RLJobStatus) -> RestartGlobal | None:
    """A global restart where the coordinator's state and the status cannot be reconciled otherwise."""
    seen, restart = observed.open_coordinator, status.restart
    if seen is None:
        return None
    if seen.epoch > restart.epoch or (seen.epoch == restart.epoch and seen.decision_id != restart.decision_id):
        message = f"the coordinator has epoch {seen.epoch}, which this job's status does not know"
        return RestartGlobal(Reason.EPOCH_TAKEN, message, ids=(f"taken/{seen.epoch}/{seen.decision_id}",), counts=False)
    if restart.opened < restart.epoch:
        return None
    if seen.server is not ServerState.LOST and seen.epoch == restart.epoch:
        return None
    message = "the control state came back without its tail: training goes on from the last recorded checkpoint"
    return RestartGlobal(Reason.CONTROL_STATE_LOST, message, ids=(f"lost/{restart.epoch}",))
