"""Lost pods: whose first process died, was replaced under it, or does not answer.

A lost pod is created anew and counts as a failure of its role. The platform's facts decide; what the coordinator
reports of lost launchers says the same thing again and is only acknowledged.
"""

from rljob_api.status import PodStatus, RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_operator.core.observed import Observed, PodFact, PodState
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import pods
from rljob_operator.core.verdicts import Cause
from rljob_operator.core.wording import how_ended, quoted

POLL_SLACK_SECONDS = 2.0
"""A launcher's poll is held open for about a second; without this a short heartbeat timeout would call that a hang."""

REGISTER_LIMIT_SECONDS = 120.0
"""From a pod's start to the registration of its launcher, or from an order to that of a rank. Both take a second; on a
machine that swaps or compiles byte code they were seen to take tens. Without a limit they could hang without a name."""


def lost_pods(observed: Observed, status: RLJobStatus, now: float) -> list[Cause]:
    """A cause for every pod whose accepted life is over."""
    causes = []
    for key, pod in pods(status):
        message = _how_lost(observed, key, pod, now) if pod.life else None
        if message is not None:
            causes.append(Cause(id=f"pod/{pod.life}", reason=Reason.LAUNCHER_LOST, pod=key, message=message, lost=True))
    return causes


def lost_before(observed: Observed, status: RLJobStatus, cause: Cause) -> bool:
    """Whether a lost pod belongs to an epoch that is being left: then it is replaced and does not count again."""
    if not cause.lost or status.restart.opened >= status.restart.epoch:
        return False
    fact = observed.fact(cause.pod)
    return fact is None or fact.started_at < status.restart.decided_at


def _how_lost(observed: Observed, key: PodKey, pod: PodStatus, now: float) -> str | None:
    fact = observed.fact(key)
    if fact is None:
        return f"pod {key} is gone"
    if fact.life != pod.life:
        return f"pod {key} was replaced or its container restarted ({pod.life} is now {fact.life})"
    if fact.state is PodState.EXITED:
        # Whoever is killed says nothing about it: its last line would be of something else.
        said = "" if fact.exit_code is not None and fact.exit_code < 0 else quoted(fact.last_words)
        return f"the launcher of {key} {how_ended(fact.exit_code)}{said}"
    return _silent(observed, key, fact, now)


def _silent(observed: Observed, key: PodKey, fact: PodFact, now: float) -> str | None:
    if observed.coordinator is None or fact.state is not PodState.RUNNING:
        return None
    seen = observed.seen(key, fact.life)
    if seen is None:
        waited = now - fact.started_at
        late = waited > REGISTER_LIMIT_SECONDS
        return f"the launcher of {key} has not registered with the coordinator in {waited:.0f} s" if late else None
    if seen.poll_age_seconds <= observed.policy.heartbeat_timeout_seconds + POLL_SLACK_SECONDS:
        return None
    return f"the launcher of {key} has not asked the coordinator for orders in {seen.poll_age_seconds:.0f} s"
