"""The largest number of global restarts. What the user started himself does not count."""

from rljob_api.spec import RestartPolicySpec
from rljob_api.status import RLJobStatus
from rljob_operator.core.reasons import Reason
from rljob_operator.core.verdicts import Fail, RestartGlobal


def limited(policy: RestartPolicySpec, status: RLJobStatus, verdict: RestartGlobal) -> RestartGlobal | Fail:
    """The restart, or the failure of the job if it would be one too many."""
    limit = policy.max_global_restarts
    if not verdict.counts or status.restart.counted_towards_max < limit:
        return verdict
    message = (
        f"{verdict.message}. That needs global restart {limit + 1}, but restartPolicy.maxGlobalRestarts is {limit}. "
        "Cure the cause, or raise the limit."
    )
    return Fail(Reason.MAX_GLOBAL_RESTARTS, message, verdict.role)
