"""`decide`: the policies in order of precedence.

Facts go into the status, causes are found in them once, the first policy with something to say gives the verdict, the
verdict goes into the status, and the actions follow from the status alone: a decision that was persisted but not
carried out is carried out next time.
"""

from rljob_api.status import ConditionType, RLJobStatus
from rljob_operator.core.attention import look_again_at
from rljob_operator.core.autoscaling import autoscaled, with_wanted
from rljob_operator.core.causes import Causes, causes_of
from rljob_operator.core.cluster_status import with_cluster_status
from rljob_operator.core.conditions import is_true, terminal
from rljob_operator.core.control_state import control_state
from rljob_operator.core.decision import Decision, Event
from rljob_operator.core.drain import drain, stopping
from rljob_operator.core.ends import deadline, fatal, finished, limited
from rljob_operator.core.gangs import levelled
from rljob_operator.core.infrastructure import restarts
from rljob_operator.core.kept import continued
from rljob_operator.core.notices import evicted_rows, notices, queue_drain, replacements
from rljob_operator.core.observed import Observed
from rljob_operator.core.orders import orders
from rljob_operator.core.outcome import applied, replaced
from rljob_operator.core.phase import phase, reason
from rljob_operator.core.progress import refresh
from rljob_operator.core.reach import not_asked, reached
from rljob_operator.core.readiness import settled
from rljob_operator.core.release import given_back, released
from rljob_operator.core.restart import restart
from rljob_operator.core.scaling import scaled
from rljob_operator.core.stall import stalled
from rljob_operator.core.start import entered
from rljob_operator.core.startup import too_late, waiting
from rljob_operator.core.vain_restarts import counted, forgotten, in_vain
from rljob_operator.core.verdicts import RestartGlobal, RestartInPlace, Suspend, Verdict
from rljob_operator.core.volume import with_volume
from rljob_operator.core.wishes import requested, spec_change


def decide(observed: Observed, now: float) -> Decision:
    """What to persist, do and tell. Pure."""
    observed = with_wanted(observed, observed.status)
    status, events = entered(observed, observed.status, now)
    status = given_back(observed, counted(observed, refresh(observed, status, now)))
    if not _rests(status):
        status, told = reached(observed, status, now)
        status, emitted = continued(observed, status, now)
        events += emitted
        status, emitted = _moved(observed, status, now)
        status = forgotten(observed.status, status)
        events += (*told, *emitted)
        observed = with_wanted(observed, status)
    if _rests(status):
        status = not_asked(status)
    if not _rests(status) and not stopping(observed, status):
        status = levelled(status, now)
    again = () if _rests(status) else tuple(restarts(observed.infrastructure, now))
    actions = (*(action for action, _ in again), *orders(observed, status, now))
    status = with_volume(observed, waiting(status, now), now)
    status = with_cluster_status(observed, status, now)
    status = status.model_copy(update={"phase": phase(status), "reason": reason(status)})
    return Decision(status, actions, (*events, *(event for _, event in again)), look_again_at(observed, status, now))


def _moved(observed: Observed, status: RLJobStatus, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
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
            status, emitted = entered(observed, status, now)  # the wish may have been taken back meanwhile
            status = refresh(observed, status, now)
            events += emitted
    for policy in (queue_drain, evicted_rows):
        status, emitted = policy(observed, status, now)
        events += emitted
    if not _rests(status):
        settle = settled if stopping(observed, status) else _scaled_and_settled
        status, emitted = settle(observed, status, now)
        events += emitted
    return status, events


def _scaled_and_settled(observed: Observed, status: RLJobStatus, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
    """Replicas that a restart kept from leaving begin to in the decision that it ends in."""
    was_ready = is_true(status, ConditionType.READY)
    status = autoscaled(observed, status, now)
    observed = with_wanted(observed, status)
    status, events = scaled(observed, status, now)
    status, emitted = settled(observed, status, now)
    if is_true(status, ConditionType.READY) and not was_ready:
        status, more = _scaled_and_settled(observed, status, now)
        emitted += more
    return status, (*events, *emitted)


def _verdict(observed: Observed, status: RLJobStatus, causes: Causes, now: float) -> Verdict | None:
    """Success first: work that is done is not undone by a process that dies after it."""
    verdict = (
        finished(observed)
        or deadline(observed, status, now)
        or fatal(observed, status, causes, now)
        or in_vain(observed, status)
        or too_late(observed, status, now)
        or drain(observed, status, now)
        or control_state(observed, status)
        or spec_change(observed, status)
        or _restart(observed, status, causes, now)
        or released(observed, status, now)
        or stalled(observed, status, now)
    )
    return limited(observed.policy, status, verdict) if isinstance(verdict, RestartGlobal) else verdict


def _restart(observed: Observed, status: RLJobStatus, causes: Causes, now: float) -> Verdict | None:
    """What failures restart, and what the user asked for."""
    verdict = restart(observed, status, causes.restarting, now)
    if verdict is None or isinstance(verdict, RestartInPlace):
        return requested(observed, status, beside=verdict) or verdict
    return verdict


def _rests(status: RLJobStatus) -> bool:
    """Whether nothing is decided any more, or not until the user says so."""
    return terminal(status) is not None or is_true(status, ConditionType.SUSPENDED)
