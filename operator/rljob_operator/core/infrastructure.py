"""Infrastructure processes (coordinator, control Redis, storage): restarted in place, at once, and not counted.

A process that keeps dying gets longer delays, then fails the job. On one machine ends within a time window are
counted; a kubelet spaces its restarts too far apart for that, so the status keeps their number since the last progress.
Pure.
"""

from collections.abc import Mapping, Sequence

from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_api.status import ConditionType, ProcessStatus, RLJobStatus
from rljob_operator.core.conditions import is_true
from rljob_operator.core.decision import Event, Fail, RestartInfrastructure
from rljob_operator.core.observed import Observed, ProcessFact
from rljob_operator.core.progress import has_advanced
from rljob_operator.core.reasons import Reason, how_ended, message_of_end, quoted

WINDOW_SECONDS = 120.0
"""Ends longer ago than this do not count against a process that runs now."""


MAX_ENDS = 10
"""So many ends within the window fail the job: with the delays below that is more than a minute of trying."""


FREE_ENDS = 3
"""So many restarts within the window are immediate, so that a killed process costs no waiting."""


def failing(observed: Observed, status: RLJobStatus, now: float) -> Fail | None:
    """The failure of the job by a process that does not stay up."""
    for process in observed.infrastructure:
        if process.alive:
            continue
        ends = len(_recent(process, now))
        line = quoted(process.last_message)
        if process.exit_code == EXIT_BAD_MANIFEST:
            return Fail(Reason.CONFIGURATION_ERROR, f"{process.name} {how_ended(process.exit_code)}{line}")
        if ends > MAX_ENDS:
            last = f"the last time it {how_ended(process.exit_code)}{line}"
            message = f"{process.name} ended {ends} times within {WINDOW_SECONDS:.0f} s; {last}"
            return Fail(Reason.INFRASTRUCTURE_FAILING, message)
    return _in_vain(observed, status)


def restarts(processes: Sequence[ProcessFact], now: float) -> list[tuple[RestartInfrastructure, Event]]:
    """What is to be started again now."""
    return [
        (RestartInfrastructure(process.name), _event(process, now))
        for process in processes
        if not process.alive and now >= due_at(process, now)
    ]


def due_at(process: ProcessFact, now: float) -> float:
    """When a dead process is to be started again: at once, later after 1, 2, 4 ... seconds."""
    recent = _recent(process, now)
    if len(recent) <= FREE_ENDS:
        return now
    return recent[-1] + min(2.0 ** (len(recent) - FREE_ENDS - 1), 16.0)


def down(processes: Sequence[ProcessFact]) -> list[str]:
    """Those whose pods do not run, each with the message of its platform."""
    return [f"{process.name} ({process.waits_for})" for process in processes if process.down_since is not None]


def is_away(processes: Sequence[ProcessFact], now: float, limit: float) -> bool:
    """Whether one has not run for longer than `limit` seconds: a job without it only looks well."""
    return any(process.down_since is not None and now - process.down_since > limit for process in processes)


def _recent(process: ProcessFact, now: float) -> list[float]:
    return [at for at in process.exits if at > now - WINDOW_SECONDS]


def _event(process: ProcessFact, now: float) -> Event:
    message = f"{process.name} {how_ended(process.exit_code)}; it is started again"
    return Event(now, Reason.INFRASTRUCTURE_RESTARTED, message)


MAX_IN_VAIN = 8
"""One more fails the job. The kubelet waits for 10 s, 20 s, 40 s ... 300 s before each: that is about twenty minutes,
in which whatever passes has passed."""


def _in_vain(observed: Observed, status: RLJobStatus) -> Fail | None:
    """The failure of a job whose infrastructure does not stay up, however long it is waited for.

    It is not asked whether the process runs just now: between two of its ends it does.
    """
    facts = {fact.name: fact for fact in observed.infrastructure}
    for process in status.infrastructure:
        fact = facts.get(process.name)
        if fact is None or process.restarts_in_vain <= MAX_IN_VAIN:
            continue
        times = process.restarts_in_vain
        message = (
            f"{process.name} has ended {times} times since the job was last Ready or trained a step; "
            f"the last time it {how_ended(fact.exit_code)}{message_of_end(fact.exit_code, fact.last_message)}"
        )
        return Fail(Reason.INFRASTRUCTURE_FAILING, message)
    return None


def counted(observed: Observed, status: RLJobStatus) -> RLJobStatus:
    """`status`, as refreshed, with the restarts since the last one counted; none where the job came forward."""
    if not observed.on_cluster or not status.infrastructure:
        return status
    before = {process.name: process for process in observed.status.infrastructure}
    processes = [_counted(process, before) for process in status.infrastructure]
    return status.model_copy(update={"infrastructure": processes})


def forgotten(old: RLJobStatus, status: RLJobStatus) -> RLJobStatus:
    """`status` with nothing counted where the job became Ready, or trained a step, after `old`."""
    ready = ConditionType.READY
    is_forward = has_advanced(old.training.step, status.training.step)
    is_forward = is_forward or (is_true(status, ready) and not is_true(old, ready))
    if not is_forward or not any(process.restarts_in_vain for process in status.infrastructure):
        return status
    processes = [process.model_copy(update={"restarts_in_vain": 0}) for process in status.infrastructure]
    return status.model_copy(update={"infrastructure": processes})


def _counted(process: ProcessStatus, before: Mapping[str, ProcessStatus]) -> ProcessStatus:
    known = before.get(process.name)
    more = max(0, process.restarts - known.restarts) if known is not None else 0
    return process.model_copy(update={"restarts_in_vain": process.restarts_in_vain + more})
