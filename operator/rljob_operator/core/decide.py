"""`decide`: the policies in order of precedence, and when the next decision is due.

Facts go into the status, causes are found once, the first policy with an answer gives the verdict, the verdict goes
into the status, and the actions follow from the status alone: a decision that was persisted but not carried out is
carried out next time. Hangs and stalls cause no event, so `next_turn_at` names the next time at which
one could be due.
"""

from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.wire.observation import ServerState
from rljob_operator.core.autoscaling import autoscaled, with_wanted
from rljob_operator.core.causes import Causes, causes_of
from rljob_operator.core.conditions import is_draining, is_true, rests, terminal
from rljob_operator.core.decision import Decision, RestartGlobal, Step, Suspend, Verdict
from rljob_operator.core.derived_status import with_derived
from rljob_operator.core.drain import drain, drained_at, saves_first, stopping
from rljob_operator.core.ends import ending, ends_at, is_over, limited
from rljob_operator.core.gang_release import given_back, released_at
from rljob_operator.core.infrastructure import counted, due_at, forgotten, restarts
from rljob_operator.core.liveness import overdue_in
from rljob_operator.core.membership import pods, with_one_generation
from rljob_operator.core.notices import notices, queue_notices, replacements
from rljob_operator.core.observed import Observed
from rljob_operator.core.orders import orders
from rljob_operator.core.outcome import applied, replaced
from rljob_operator.core.progress import refresh, stalled, stalls_at
from rljob_operator.core.reachability import no_contact_counts_at, not_asked, reached
from rljob_operator.core.readiness import settled, too_late, too_late_at
from rljob_operator.core.restart import restart
from rljob_operator.core.scaling import is_owed, leaves_at, scaled
from rljob_operator.core.start import continued, entered

POLL_INTERVAL_SECONDS = 1.0
"""While something is on its way; in a local run always. On a cluster it is announced, and the poll is for what is not:
a job that waits is decided on after as long again as it has waited, up to the quiet interval."""


OPENING_INTERVAL_SECONDS = 0.05
"""While the control state opens the whole job waits, and its end is not announced. Also when a pod was given up in
this turn: the one that takes its number may be there already."""


QUIET_INTERVAL_SECONDS = 30.0
"""A job on a cluster in which all is well: nothing can be overdue earlier than it is checked for."""


REST_INTERVAL_SECONDS = 600.0
"""A job that has ended or is suspended: whatever happens to it is announced."""


def next_turn_at(observed: Observed, status: RLJobStatus, now: float) -> float:
    """Unix time, later than `now`."""
    times = [now + _interval(observed, status, now), *ends_at(observed, status, now)]
    if not is_over(observed, status, now):
        times += [leaves_at(pod) for _, pod in pods(status) if pod.draining]
        times += [due_at(process, now) for process in observed.infrastructure if not process.alive]
        marks = (drained_at(observed, status), released_at(observed, status), too_late_at(observed, status))
        times += [at for at in (status.restart.backoff_until, *marks) if at is not None]
    return min(at for at in times if at > now)


def _interval(observed: Observed, status: RLJobStatus, now: float) -> float:
    coordinator = observed.coordinator
    if saves_first(observed, status, now):
        return POLL_INTERVAL_SECONDS
    if observed.on_cluster and _waits_for_a_pod(observed, status):
        return OPENING_INTERVAL_SECONDS
    if observed.on_cluster and (is_true(status, ConditionType.SUSPENDED) or is_over(observed, status, now)):
        return REST_INTERVAL_SECONDS
    if coordinator is not None and coordinator.server is ServerState.OPENING:
        return OPENING_INTERVAL_SECONDS
    if not observed.on_cluster or terminal(status) is not None or is_draining(status) or is_owed(observed, status):
        return POLL_INTERVAL_SECONDS
    soonest = [QUIET_INTERVAL_SECONDS]
    if coordinator is None or not is_true(status, ConditionType.READY):
        soonest.append(now - _waits_since(status))
    if coordinator is not None:
        stall = stalls_at(observed, status, now) - now
        soonest += [*overdue_in(observed, status, coordinator, now), *([stall] if stall > 0 else [])]
    soonest += [at - now for at in no_contact_counts_at(observed, status) if at > now]
    return max(min(soonest), POLL_INTERVAL_SECONDS)


def _waits_since(status: RLJobStatus) -> float:
    """When what the job waits for was last ordered."""
    ordered = (pod.ordered_at for _, pod in pods(status))
    return max([status.restart.decided_at or 0.0, status.restart.opened_at or 0.0, *ordered])


def _waits_for_a_pod(observed: Observed, status: RLJobStatus) -> bool:
    """Whether this decision gave up the incarnation of a pod."""
    before = {key: pod.incarnation for key, pod in pods(observed.status)}
    return any(not pod.incarnation and before.get(key) for key, pod in pods(status))


def decide(observed: Observed, now: float) -> Decision:
    """What to persist, carry out and emit. Pure. The actions follow from the status with all of its fields."""
    observed = with_wanted(observed, observed.status)
    status, events = entered(observed, observed.status, now)
    status = given_back(observed, counted(observed, refresh(observed, status, now)))
    if not rests(status):
        for step in (continued, reached, _moved):
            status, emitted = step(observed, status, now)
            events += emitted
        status = forgotten(observed.status, status)
        observed = with_wanted(observed, status)
    is_at_rest = rests(status)
    again = [] if is_at_rest else restarts(observed.infrastructure, now)
    status = with_derived(observed, not_asked(status) if is_at_rest else status, now)
    actions = (*(action for action, _ in again), *orders(observed, status, now))
    events += tuple(event for _, event in again)
    return Decision(status, actions, events, next_turn_at(observed, status, now))


def _moved(observed: Observed, status: RLJobStatus, now: float) -> Step:
    """What a job that runs, or is to run, comes to."""
    causes = causes_of(observed, status, now)
    verdict = _verdict(observed, status, causes, now)
    events = notices(observed, causes, now)
    if not stopping(observed, status):
        events += replacements(causes, now)
        status = replaced(observed, status, causes.replaced, now)
    if verdict is not None:
        status, emitted = applied(observed, status, verdict, now)
        events += emitted
    if isinstance(verdict, Suspend):
        status, emitted = entered(observed, status, now)  # the request may have been taken back meanwhile
        status = refresh(observed, status, now)
        events += emitted
    for step in (queue_notices, _scaled_and_settled):
        status, emitted = step(observed, status, now)
        events += emitted
    return status, events


def _scaled_and_settled(observed: Observed, status: RLJobStatus, now: float) -> Step:
    """Replicas that could not leave during a restart begin to in the decision that it ends in."""
    if rests(status):
        return status, ()
    if stopping(observed, status):
        return settled(observed, status, now)
    was_ready = is_true(status, ConditionType.READY)
    status = autoscaled(observed, status, now)
    observed = with_wanted(observed, status)
    status, events = scaled(observed, status, now)
    status, emitted = settled(observed, status, now)
    if is_true(status, ConditionType.READY) and not was_ready:
        status, more = _scaled_and_settled(observed, status, now)
        emitted += more
    return with_one_generation(status, now, observed.topologies), (*events, *emitted)


def _verdict(observed: Observed, status: RLJobStatus, causes: Causes, now: float) -> Verdict | None:
    """Success first: a failure after the work is complete does not undo it."""
    verdict = (
        ending(observed, status, causes, now)
        or too_late(observed, status, now)
        or drain(observed, status, now)
        or restart(observed, status, causes.restarting, now)
        or stalled(observed, status, now)
    )
    return limited(observed.policy, status, verdict) if isinstance(verdict, RestartGlobal) else verdict
