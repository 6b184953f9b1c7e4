"""Failure rules: what single kinds of failure lead to, before the restart table is asked.

Pure. Called by `restart` with every cause. The first rule that matches applies.
"""

from dataclasses import replace

from rljob_api.spec import FailureRuleSpec, RestartPolicySpec, RuleAction
from rljob_operator.core.reasons import Reason
from rljob_operator.core.verdicts import Cause, Fail

_SIGNAL_BASE = 128
"""A container runtime tells death by signal N as exit code 128 + N."""


def ruled(policy: RestartPolicySpec, cause: Cause) -> Cause | Fail:
    """The cause as the rules have it, or the failure of the job."""
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
