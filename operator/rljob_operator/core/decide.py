"""`decide`: the policies in order of precedence.

Facts go into the status, the first policy with something to say gives the verdict, the verdict goes into the status,
and the actions follow from the status alone: a decision that was persisted but not carried out is carried out next
time.
"""

from rljob_api.status import RLJobStatus
from rljob_api.wire.observation import ServerState
from rljob_operator.core.conditions import terminal
from rljob_operator.core.control_state import control_state
from rljob_operator.core.decision import Decision, Event
from rljob_operator.core.drain import DRAIN_LIMIT_SECONDS, drain
from rljob_operator.core.fatal import fatal
from rljob_operator.core.finished import finished
from rljob_operator.core.infrastructure import due_at, restarts
from rljob_operator.core.maximum import limited
from rljob_operator.core.notices import notices
from rljob_operator.core.observed import Observed
from rljob_operator.core.orders import orders, over_at
from rljob_operator.core.outcome import applied, replaced
from rljob_operator.core.phase import phase
from rljob_operator.core.pods import lost_pods
from rljob_operator.core.progress import refresh
from rljob_operator.core.readiness import settled
from rljob_operator.core.restart import restart
from rljob_operator.core.stall import stalled
from rljob_operator.core.verdicts import Drain, RestartGlobal, Verdict

LOOK_INTERVAL_SECONDS = 1.0
"""Silence (a hang, a stall) gives no event: it is looked for this often."""

OPENING_INTERVAL_SECONDS = 0.05
"""While the control state opens the whole job waits, and its end is not announced."""


def decide(observed: Observed, now: float) -> Decision:
    """What to persist, do and tell. Pure."""
    status = refresh(observed, now)
    ended = terminal(status) is not None
    verdict = None if ended else _verdict(observed, status, now)
    events = () if ended else notices(observed, status, now)
    if not ended and observed.interrupted_at is None:
        status = replaced(observed, status, lost_pods(observed, status, now), now)
    if verdict is not None:
        status, told = applied(observed, status, verdict, now)
        events += told
    if terminal(status) is None and (verdict is None or isinstance(verdict, Drain)):
        status, told = settled(observed, status, now)
        events += told
    again = () if terminal(status) is not None else tuple(restarts(observed.infrastructure, now))
    actions = (*(action for action, _ in again), *orders(observed, status, now))
    status = status.model_copy(update={"phase": phase(status)})
    return Decision(status, actions, (*events, *_events(again)), _look_again_at(observed, status, now))


def _verdict(observed: Observed, status: RLJobStatus, now: float) -> Verdict | None:
    """Success first: work that is done is not undone by a process that dies after it."""
    verdict = (
        finished(observed)
        or fatal(observed, status, now)
        or drain(observed, status, now)
        or control_state(observed, status)
        or restart(observed, status, now)
        or stalled(observed, status, now)
    )
    return limited(observed.policy, status, verdict) if isinstance(verdict, RestartGlobal) else verdict


def _events(again: tuple[tuple[object, Event], ...]) -> tuple[Event, ...]:
    return tuple(event for _, event in again)


def _look_again_at(observed: Observed, status: RLJobStatus, now: float) -> float:
    opening = observed.coordinator is not None and observed.coordinator.server is ServerState.OPENING
    times = [now + (OPENING_INTERVAL_SECONDS if opening else LOOK_INTERVAL_SECONDS)]
    times += [due_at(process, now) for process in observed.infrastructure if not process.alive]
    times += [at for at in (status.restart.backoff_until, over_at(status)) if at is not None]
    if observed.interrupted_at is not None:
        times.append(observed.interrupted_at + DRAIN_LIMIT_SECONDS)
    return min(at for at in times if at > now)
