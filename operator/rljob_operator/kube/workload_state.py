"""State of a Workload for its job: whether it is admitted, why it is not, and which flavors it starts with. Pure.

    none -> waits -> admitted (the job runs) -> evicted: the job saves and its pods go -> quota is given back -> waits

`workload_writes` has the writes between these states.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api.cluster import ANNOTATION_BUILT_FOR, ANNOTATION_REQUESTS
from rljob_api.roles import SCALED_ROLE
from rljob_api.status import PodSetStatus, QueueStatus, TolerationStatus
from rljob_operator.build.flavors import pod_set_name
from rljob_operator.build.parts import role_part
from rljob_operator.core import Reason
from rljob_operator.core.queue import Hold, QueueFact
from rljob_operator.kube.views import OwnedView
from rljob_operator.kube.workload_view import AssignmentView, WorkloadView

Json = dict[str, Any]


ROLLOUTS = pod_set_name(role_part(SCALED_ROLE))
"""The set whose number may differ from what is wanted while the job runs: it has no more than that."""


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
    """Additions of a ResourceFlavor to pods."""

    node_labels: Mapping[str, str]
    tolerations: Sequence[Json]


def admission_of(view: WorkloadView, flavors: Mapping[str, Flavor]) -> QueueStatus:
    """The admission that the job is started by."""
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
    """The facts of the Workload. `runs`: the job may have pods. `problem`: why the Workload is not made or read."""
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
            return Hold(Reason.ADMITTED_AGAIN, f"{queue}: the Workload by which the job was admitted is gone")
        return Hold(Reason.QUEUED, f"{queue}: {problem or 'the Workload of the job is not made yet'}")
    if view.is_true("Finished"):
        return Hold(Reason.ADMITTED_AGAIN, f"{queue}: the Workload was declared finished, and the job is not")
    if view.is_true("Evicted"):
        why = view.condition("Evicted")
        return Hold(
            Reason.QUOTA_TAKEN, f"{queue}: Kueue takes the quota back ({why.reason}): {why.message}{_cure(view)}"
        )
    if view.is_true("QuotaReserved") and not is_current(known, wanted):
        message = f"{queue}: the job was admitted for other pods, or in another queue; it is admitted anew"
        return Hold(Reason.ADMITTED_AGAIN, message)
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
