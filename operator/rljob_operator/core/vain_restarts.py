"""Restarts in vain: a process of the infrastructure that its cluster starts again and again for nothing fails the job.

Pure. Called by `decide`. On one machine `infrastructure` bounds it by time; a kubelet spaces restarts out so far that
only their number says anything, and that is kept in the status.
"""

from collections.abc import Mapping

from rljob_api.status import ConditionType, ProcessStatus, RLJobStatus
from rljob_operator.core.conditions import is_true
from rljob_operator.core.observed import Observed, ProcessFact
from rljob_operator.core.progress import has_advanced
from rljob_operator.core.reasons import Reason
from rljob_operator.core.verdicts import Fail
from rljob_operator.core.wording import how_ended, quoted

MAX_IN_VAIN = 8
"""One more fails the job. The kubelet waits for 10 s, 20 s, 40 s ... 300 s before each: that is about twenty minutes,
in which whatever passes has passed."""


def in_vain(observed: Observed, status: RLJobStatus) -> Fail | None:
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
            f"the last time it {how_ended(fact.exit_code)}{_last_words(fact)}"
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


def _last_words(fact: ProcessFact) -> str:
    """Whoever is killed says nothing about it: its last line would be of something else."""
    return "" if fact.exit_code is not None and fact.exit_code < 0 else quoted(fact.last_words)
