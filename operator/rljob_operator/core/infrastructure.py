"""Infrastructure: coordinator, control state, storage. Restarted in place, at once, and not counted.

One that dies again and again is not restarted for ever: its restarts are spaced out, then the job fails with its name.
"""

from collections.abc import Sequence

from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_operator.core.decision import Event, RestartInfrastructure
from rljob_operator.core.observed import ProcessFact
from rljob_operator.core.reasons import Reason
from rljob_operator.core.verdicts import Fail
from rljob_operator.core.wording import how_ended, quoted

WINDOW_SECONDS = 120.0
"""Ends longer ago than this say nothing about a process that runs now."""

MAX_ENDS = 10
"""So many ends within the window fail the job: with the delays below that is more than a minute of trying."""

FREE_ENDS = 3
"""So many restarts within the window are immediate, so that a killed process costs no waiting."""


def failing(processes: Sequence[ProcessFact], now: float) -> Fail | None:
    """The failure of the job by a process that does not stay up."""
    for process in processes:
        if process.alive:
            continue
        ends = len(_recent(process, now))
        said = quoted(process.last_words)
        if process.exit_code == EXIT_BAD_MANIFEST:
            return Fail(Reason.CONFIGURATION_ERROR, f"{process.name} {how_ended(process.exit_code)}{said}")
        if ends > MAX_ENDS:
            last = f"the last time it {how_ended(process.exit_code)}{said}"
            message = f"{process.name} ended {ends} times within {WINDOW_SECONDS:.0f} s; {last}"
            return Fail(Reason.INFRASTRUCTURE_FAILING, message)
    return None


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
    """Those whose pods do not run, each with what its platform says."""
    return [f"{process.name} ({process.waits_for})" for process in processes if process.down_since is not None]


def is_away(processes: Sequence[ProcessFact], now: float, limit: float) -> bool:
    """Whether one has not run for longer than `limit` seconds: a job without it only looks well."""
    return any(process.down_since is not None and now - process.down_since > limit for process in processes)


def _recent(process: ProcessFact, now: float) -> list[float]:
    return [at for at in process.exits if at > now - WINDOW_SECONDS]


def _event(process: ProcessFact, now: float) -> Event:
    message = f"{process.name} {how_ended(process.exit_code)}; it is started again"
    return Event(now, Reason.INFRASTRUCTURE_RESTARTED, message)
