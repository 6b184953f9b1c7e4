"""The part of a Workload of Kueue that the operator keeps, and what it says about the job. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rljob_api.cluster import ANNOTATION_REQUESTS

Raw = Mapping[str, Any]


class ConditionView(NamedTuple):
    """As metav1.Condition."""

    status: str
    reason: str
    message: str


ABSENT = ConditionView("", "", "")


@dataclass(frozen=True, slots=True)
class AssignmentView:
    """Assignment of one set of pods."""

    name: str
    flavors: tuple[str, ...]
    """ResourceFlavors, each once, sorted."""
    updates: tuple[Raw, ...] = ()
    """Additions of admission checks: labels, annotations, nodeSelector, tolerations."""


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """A Workload."""

    queue: str
    requests: str
    """Digest of what its pods ask for, as the operator noted it."""
    counts: Mapping[str, int]
    """Set -> pods."""
    priority_class: tuple[str, str]
    """Kind and name; empty without one."""
    active: bool
    conditions: Mapping[str, ConditionView] = field(default_factory=dict)
    cluster_queue: str = ""
    """The queue of its quota; "" without."""
    assignments: tuple[AssignmentView, ...] = ()
    pending_checks: tuple[str, ...] = ()
    """Sentences of admission checks that are not through."""

    def condition(self, kind: str) -> ConditionView:
        """One that is absent has empty fields."""
        return self.conditions.get(kind, ABSENT)

    def is_true(self, kind: str) -> bool:
        """Whether a condition is true."""
        return self.condition(kind).status == "True"


def view_workload(raw: Raw) -> WorkloadView:
    """The part that is kept."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    admission, checks = status.get("admission") or {}, status.get("admissionChecks") or ()
    reference = spec.get("priorityClassRef") or {}
    return WorkloadView(
        queue=spec.get("queueName", ""),
        requests=(raw["metadata"].get("annotations") or {}).get(ANNOTATION_REQUESTS, ""),
        counts={each["name"]: each["count"] for each in spec.get("podSets") or ()},
        priority_class=(reference.get("kind", ""), reference.get("name", "")),
        active=spec.get("active", True),
        conditions={
            each["type"]: ConditionView(each["status"], each.get("reason", ""), each.get("message", ""))
            for each in status.get("conditions") or ()
        },
        cluster_queue=admission.get("clusterQueue", ""),
        assignments=tuple(_assignment(each, checks) for each in admission.get("podSetAssignments") or ()),
        pending_checks=tuple(
            f"{each['name']}: {each.get('message') or each['state']}" for each in checks if each["state"] != "Ready"
        ),
    )


def _assignment(raw: Raw, checks: tuple[Raw, ...] | list[Raw]) -> AssignmentView:
    flavors = tuple(sorted(set((raw.get("flavors") or {}).values())))
    updates = [each for check in checks for each in check.get("podSetUpdates") or () if each["name"] == raw["name"]]
    return AssignmentView(raw["name"], flavors, tuple(updates))
