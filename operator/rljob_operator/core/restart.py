"""The restart table: which scope the failures of a role restart.

Pure. Called by `decide`; knows neither processes nor Deployments, only failures and counts.
"""

from collections import Counter
from collections.abc import Sequence

from rljob_api.names import Role, Scope
from rljob_api.role_traits import TRAITS
from rljob_api.spec import RestartPolicySpec
from rljob_api.status import RLJobStatus
from rljob_operator.core.failure_rules import ruled
from rljob_operator.core.failures import reported
from rljob_operator.core.hang import hanging
from rljob_operator.core.observed import Observed
from rljob_operator.core.pods import lost_before, lost_pods, never_ran
from rljob_operator.core.unseen import lost_unseen
from rljob_operator.core.verdicts import Cause, Fail, RestartGlobal, RestartInPlace


def row(policy: RestartPolicySpec, role: Role) -> Scope:
    """The row of `role`, overridden (where it may be) or default."""
    traits = TRAITS[role]
    return traits.scope if traits.fixed_because else policy.table.row(role) or traits.scope


def causes(observed: Observed, status: RLJobStatus, now: float) -> list[Cause]:
    """At most one cause a pod: a lost pod explains its dead ranks, a dead rank explains a silent one."""
    lost = [cause for cause in lost_pods(observed, status, now) if _restarts(observed, status, cause)]
    found: dict[str, Cause] = {}
    for cause in [*lost, *lost_unseen(observed, status), *reported(observed, status), *hanging(observed, status, now)]:
        found.setdefault(str(cause.pod), cause)
    return list(found.values())


def _restarts(observed: Observed, status: RLJobStatus, lost: Cause) -> bool:
    return not lost_before(observed, status, lost) and not never_ran(observed, status, lost)


def remembered(policy: RestartPolicySpec, times: Sequence[float], now: float) -> list[float]:
    """The failures that windowSeconds has not made forgotten."""
    window = policy.window_seconds
    return [at for at in times if window is None or at > now - window]


def restart(observed: Observed, status: RLJobStatus, now: float) -> Fail | RestartGlobal | RestartInPlace | None:
    """What the failures that are seen now restart, all together; or the end, where a rule of the user says so."""
    seen: list[Cause] = []
    for cause in causes(observed, status, now):
        answer = ruled(observed.policy, cause)
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
