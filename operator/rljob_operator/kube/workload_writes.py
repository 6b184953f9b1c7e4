"""The next write to a job's Workload, by what it says and how the job is: a pure table.

A Workload whose quota is reserved cannot be changed: where it no longer fits, the job is suspended, it is deleted, and
another one is made. Every write may be the last one before the operator dies: the next turn reads what came of it.
"""

from dataclasses import dataclass

from rljob_api.status import ConditionType, RLJobStatus
from rljob_operator.core.conditions import (
    is_scaling,
    is_true,
    is_unknown,
    is_without_infrastructure,
    terminal,
)
from rljob_operator.kube.views import OwnedView
from rljob_operator.kube.workload_state import WantedWorkload, is_current
from rljob_operator.kube.workload_view import WorkloadView


@dataclass(frozen=True, slots=True)
class Standing:
    """How the job is after the decision of this turn."""

    at_rest: bool
    """Nothing of it is wanted, and no pod is left."""
    by_user: bool
    """The user has suspended it."""
    ready: bool | None
    """None: unknown."""
    succeeded: bool | None = None
    """How it ended; None while it has not."""
    message: str = ""
    """Sentence of its end."""


def standing_of(status: RLJobStatus, *, num_pods: int, by_user: bool) -> Standing:
    """By what was decided."""
    ended = terminal(status)
    is_held = is_true(status, ConditionType.SUSPENDED)
    return Standing(
        at_rest=is_held and num_pods == 0,
        by_user=by_user,
        ready=None if is_unknown(status, ConditionType.READY) else _is_ready(status),
        succeeded=None if ended is None else ended.type == ConditionType.SUCCEEDED,
        message="" if ended is None else ended.message,
    )


def _is_ready(status: RLJobStatus) -> bool:
    """Replicas that join a job that runs are not waited for."""
    return is_true(status, ConditionType.READY) or is_scaling(status) or is_without_infrastructure(status)


@dataclass(frozen=True, slots=True)
class Create:
    """Make the Workload."""


@dataclass(frozen=True, slots=True)
class Update:
    """Bring its spec to what is wanted."""


@dataclass(frozen=True, slots=True)
class Reprioritize:
    """Give it the priority that is wanted, and change nothing else: its quota is reserved."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete it; where it is still wanted another one is made in the next turn."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Give the quota back, now that no pod is left: Kueue may queue it again."""

    reason: str
    message: str
    again: bool
    """Whether it is queued again at once; else Kueue says when."""


@dataclass(frozen=True, slots=True)
class SetCondition:
    """Set a condition that is the job's to say."""

    kind: str
    status: bool
    reason: str
    message: str


Write = Create | Update | Reprioritize | Delete | GiveBack | SetCondition


_AT_ONCE = ("Preempted", "NodeFailures")
"""Evictions after which a Workload is queued again without Kueue's say."""


def next_write(known: OwnedView | None, wanted: WantedWorkload, standing: Standing) -> Write | None:
    """The write that is due; None: the Workload is as it should be, or something is waited for."""
    view = None if known is None else known.workload
    if standing.succeeded is not None:
        return None if view is None or view.is_true("Finished") else _finish(standing)
    if known is None or view is None:
        return Create() if standing.at_rest and not standing.by_user else None
    if known.deleting:
        return None
    is_reserved = view.is_true("QuotaReserved")
    if standing.at_rest and (
        standing.by_user or view.is_true("Finished") or (is_reserved and not is_current(known, wanted))
    ):
        return Delete()
    if is_reserved and view.is_true("Evicted"):
        return _give_back(view) if standing.at_rest else None
    if is_reserved:
        return _reprioritize(view, wanted) or (_pods_ready(view, standing) if view.is_true("Admitted") else None)
    if not _is_as_wanted(known, view, wanted):
        return Update()
    return _not_started(view)


def _finish(standing: Standing) -> Write:
    return SetCondition("Finished", True, "Succeeded" if standing.succeeded else "Failed", standing.message)


def _give_back(view: WorkloadView) -> Write:
    why = view.condition("Evicted")
    return GiveBack(why.reason, why.message, again=why.reason in _AT_ONCE)


def _reprioritize(view: WorkloadView, wanted: WantedWorkload) -> Write | None:
    """One WorkloadPriorityClass may take the place of another at once; the rest waits until the quota is given back."""
    kinds = {view.priority_class[0], wanted.priority[0]}
    return Reprioritize() if view.priority_class != wanted.priority and kinds == {"WorkloadPriorityClass"} else None


def _is_as_wanted(known: OwnedView, view: WorkloadView, wanted: WantedWorkload) -> bool:
    made = (view.queue, view.counts, view.requests, known.built_for, view.priority_class)
    return made == (wanted.queue, wanted.counts, wanted.requests, wanted.built_for, wanted.priority)


_NOT_READY = "not every rank of the job is ready"


def _pods_ready(view: WorkloadView, standing: Standing) -> Write | None:
    """As Kueue's own jobs say it: a job that was ready, and is not, recovers."""
    known = view.condition("PodsReady")
    recovers = known.reason in ("WaitForRecovery", "Recovered")
    if standing.ready is None:
        return None
    if standing.ready:
        wanted = SetCondition(
            "PodsReady", True, "Recovered" if recovers else "Started", "every rank of the job is ready"
        )
    elif recovers or known.status == "True":
        wanted = SetCondition("PodsReady", False, "WaitForRecovery", _NOT_READY)
    else:
        wanted = SetCondition("PodsReady", False, "WaitForStart", _NOT_READY)
    is_known = (known.status, known.reason) == ("True" if wanted.status else "False", wanted.reason)
    return None if is_known else wanted


def _not_started(view: WorkloadView) -> Write | None:
    """PodsReady is false again at an eviction: what was ready before is not when it is admitted again."""
    known = view.condition("PodsReady")
    if known.reason in ("", "WaitForStart"):
        return None
    return SetCondition("PodsReady", False, "WaitForStart", _NOT_READY)
