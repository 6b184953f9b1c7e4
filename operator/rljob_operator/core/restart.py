"""The restart table: which scope the failures of a role restart, and what the user's rules make of single failures.

Pure. Called by `decide`; knows neither processes nor Deployments, only causes and counts.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rljob_api.names import Role, Scope
from rljob_api.role_traits import TRAITS
from rljob_api.spec import FailureRuleSpec, RestartPolicySpec, RuleAction
from rljob_api.status import RLJobStatus
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason
from rljob_operator.core.verdicts import Cause, Fail, RestartGlobal, RestartInPlace

_SIGNAL_BASE = 128
"""A container runtime tells death by signal N as exit code 128 + N."""


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
    """What the failures that are seen now restart, all together; or the end, where a rule of the user says so."""
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
