"""What a Workload says about its job, and the next write to it: two pure tables, of which the second follows the first.

    none -> waits -> admitted (the job runs) -> evicted: the job saves and its pods go -> quota is given back -> waits

A Workload whose quota is reserved cannot be changed: where it no longer fits, the job is suspended, it is deleted, and
another one is made. Every write may be the last one before the operator dies: the next turn reads what came of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api.cluster import ANNOTATION_BUILT_FOR, ANNOTATION_REQUESTS
from rljob_api.roles import SCALED_ROLE
from rljob_api.status import ConditionType, PodSetStatus, QueueStatus, RLJobStatus, TolerationStatus
from rljob_operator.build.flavors import pod_set_name
from rljob_operator.build.parts import role_part
from rljob_operator.core import Reason
from rljob_operator.core.conditions import (
    is_scaling,
    is_true,
    is_unknown,
    is_without_infrastructure,
    terminal,
)
from rljob_operator.core.queue import Hold, QueueFact
from rljob_operator.kube.views import OwnedView
from rljob_operator.kube.workload_view import AssignmentView, WorkloadView

Json = dict[str, Any]


ROLLOUTS = pod_set_name(role_part(SCALED_ROLE))
"""The set whose number may differ from what is wanted while the job runs: it has no more than that."""


@dataclass(frozen=True, slots=True)
class Priority:
    """Of a Workload."""

    group: str
    kind: str
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class WantedWorkload:
    """The Workload as the job wants it."""

    manifest: Json
    """Without a priority."""
    priority: tuple[str, str]
    """Kind and name of its class; empty without one."""

    @property
    def queue(self) -> str:
        """The LocalQueue."""
        return str(self.manifest["spec"]["queueName"])

    @property
    def counts(self) -> dict[str, int]:
        """Set -> pods."""
        return {each["name"]: each["count"] for each in self.manifest["spec"]["podSets"]}

    @property
    def built_for(self) -> str:
        """Revision of the spec."""
        return str(self.manifest["metadata"]["annotations"][ANNOTATION_BUILT_FOR])

    @property
    def requests(self) -> str:
        """Digest of what its pods ask for."""
        return str(self.manifest["metadata"]["annotations"][ANNOTATION_REQUESTS])


@dataclass(frozen=True, slots=True)
class Flavor:
    """What a ResourceFlavor adds to pods."""

    node_labels: Mapping[str, str]
    tolerations: Sequence[Json]


def admission_of(view: WorkloadView, flavors: Mapping[str, Flavor]) -> QueueStatus:
    """What the job is started by."""
    sets = [_placement(each, flavors) for each in view.assignments]
    return QueueStatus(
        name=view.queue,
        cluster_queue=view.cluster_queue,
        pod_sets=[each for each in sets if each != PodSetStatus(name=each.name)],
    )


def _placement(assigned: AssignmentView, flavors: Mapping[str, Flavor]) -> PodSetStatus:
    selector: dict[str, str] = {}
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    tolerations: list[Json] = []
    for name in assigned.flavors:
        selector |= flavors[name].node_labels
        tolerations += flavors[name].tolerations
    for update in assigned.updates:
        selector |= update.get("nodeSelector") or {}
        tolerations += update.get("tolerations") or ()
        labels |= update.get("labels") or {}
        annotations |= update.get("annotations") or {}
    return PodSetStatus(
        name=assigned.name,
        node_selector=selector,
        tolerations=[TolerationStatus.model_validate(each) for each in tolerations],
        labels=labels,
        annotations=annotations,
    )


def queue_fact(
    known: OwnedView | None, wanted: WantedWorkload, admission: QueueStatus | None, *, runs: bool, problem: str = ""
) -> QueueFact:
    """What the Workload says. `runs`: the job may have pods. `problem`: why the Workload is not made or read."""
    rollouts = wanted.counts[ROLLOUTS]
    hold = _hold(known, wanted, runs=runs, problem=problem)
    if hold is not None or known is None or known.workload is None:
        return QueueFact(hold, wanted=rollouts)
    return QueueFact(None, admission, rollouts, known.workload.counts.get(ROLLOUTS, 0))


def _hold(known: OwnedView | None, wanted: WantedWorkload, *, runs: bool, problem: str) -> Hold | None:
    queue = f"LocalQueue {wanted.queue}"
    view = None if known is None else known.workload
    if view is None or known is None or known.deleting:
        if runs:
            return Hold(Reason.ADMITTED_ANEW, f"{queue}: the Workload by which the job was admitted is gone")
        return Hold(Reason.QUEUED, f"{queue}: {problem or 'the Workload of the job is not made yet'}")
    if view.is_true("Finished"):
        return Hold(Reason.ADMITTED_ANEW, f"{queue}: the Workload was declared finished, and the job is not")
    if view.is_true("Evicted"):
        why = view.condition("Evicted")
        return Hold(
            Reason.QUOTA_TAKEN, f"{queue}: Kueue takes the quota back ({why.reason}): {why.message}{_cure(view)}"
        )
    if view.is_true("QuotaReserved") and not is_current(known, wanted):
        message = f"{queue}: the job was admitted for other pods, or in another queue; it is admitted anew"
        return Hold(Reason.ADMITTED_ANEW, message)
    if view.is_true("Admitted"):
        return Hold(Reason.QUEUED, f"{queue}: {problem}") if problem and not runs else None
    return Hold(Reason.QUEUED, f"{queue}: {problem or _waits_for(view)}{_cure(view)}")


def _cure(view: WorkloadView) -> str:
    return (
        ""
        if view.active
        else ". It is not queued again by itself: set spec.active of the Workload to true, or delete that"
    )


def _waits_for(view: WorkloadView) -> str:
    reserved = view.condition("QuotaReserved")
    if reserved.status == "True":
        checks = "; ".join(view.pending_checks)
        return "the quota is reserved, and admission checks are not through" + (f": {checks}" if checks else "")
    return reserved.message or "Kueue has not looked at the Workload of the job yet"


def is_current(known: OwnedView, wanted: WantedWorkload) -> bool:
    """Whether the quota of the Workload is that of the job's pods; of rollouts there may be more or fewer.

    By an operator of another version pods of the same spec may ask for something else; those that run do not.
    """
    view = known.workload
    if view is None or view.queue != wanted.queue:
        return False
    is_same = known.built_for == wanted.built_for or view.requests == wanted.requests
    return is_same and {**view.counts, ROLLOUTS: 0} == {**wanted.counts, ROLLOUTS: 0}


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
    """Of its end."""


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
    """What was ready before an eviction is not when it is admitted again."""
    known = view.condition("PodsReady")
    if known.reason in ("", "WaitForStart"):
        return None
    return SetCondition("PodsReady", False, "WaitForStart", _NOT_READY)
