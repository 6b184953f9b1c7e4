"""Views: what is kept of an object of the API server, and nothing else, since there are very many. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rljob_api.cluster import (
    ANNOTATION_APPLIED,
    ANNOTATION_BUILT_FOR,
    ANNOTATION_TEMPLATE,
    COMPONENT_COORDINATOR,
    LABEL_COMPONENT,
    LABEL_JOB,
    LABEL_ROLE,
)
from rljob_api.times import seconds

Raw = Mapping[str, Any]


class JobKey(NamedTuple):
    """A job's place in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Controller:
    """Who an object belongs to: its one owner reference that says `controller`."""

    kind: str
    """With its API group: `RLJob.rljob.dev`, `ReplicaSet.apps`; a kind of the core group stands alone."""
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """How a container ended."""

    exit_code: int
    signal: int
    reason: str
    message: str
    finished_at: float


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod, and of its containers the one that its component is named after."""

    name: str
    uid: str
    controller: Controller | None
    component: str
    role: str
    template: str
    """Digest of the template that it was made from."""
    phase: str
    reason: str
    message: str
    created_at: float
    deleting: bool
    gone_by: float | None
    """Unix time by which it should have ended, once it is being deleted."""
    grace_seconds: int
    """How long it may take to end, once it is being deleted."""
    node: str = field(compare=False)
    """Where a pod is placed is no news: nothing is decided on it."""
    ready: bool
    """Of the coordinator. Of other pods it is not asked: the coordinator knows better, and tells."""
    disruption: str
    """Reason of the condition DisruptionTarget."""
    disruption_message: str
    unscheduled: str
    """Why no node was found, in the scheduler's words."""
    restarts: int
    running_since: float | None
    started: bool
    """It runs, and is past its start-up probe."""
    waiting: str
    waiting_message: str
    ended: ContainerEnd | None
    """While it has ended and not been started again."""
    last_end: ContainerEnd | None
    deletion_cost: str


@dataclass(frozen=True, slots=True)
class OwnedView:
    """An object with a job's label or name: one that the operator has applied, or somebody else's."""

    kind: str
    name: str
    uid: str
    controller: Controller | None
    applied: str
    built_for: str
    template: str
    deleting: bool
    replicas: int | None
    """spec.replicas of a Deployment or StatefulSet."""
    version: int = field(default=0, compare=False)
    """Of two views of one object (uid) the one with the greater number is the later; alone it says nothing new."""


def job_of(raw: Raw) -> JobKey | None:
    """Which job an object belongs to, by its label."""
    metadata = raw["metadata"]
    name = (metadata.get("labels") or {}).get(LABEL_JOB)
    return JobKey(metadata["namespace"], name) if name else None


def view_pod(raw: Raw) -> PodView:
    """What is kept of a pod."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    component = labels.get(LABEL_COMPONENT, "")
    container = _container(status, raw.get("spec") or {})
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    disruption = _true(conditions, "DisruptionTarget")
    scheduled = conditions.get("PodScheduled") or {}
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        controller=controller_of(metadata),
        component=component,
        role=labels.get(LABEL_ROLE, ""),
        template=annotations.get(ANNOTATION_TEMPLATE, ""),
        phase=status.get("phase", ""),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        created_at=_time(metadata.get("creationTimestamp")) or 0.0,
        deleting="deletionTimestamp" in metadata,
        gone_by=_time(metadata.get("deletionTimestamp")),
        grace_seconds=metadata.get("deletionGracePeriodSeconds", 0),
        node=(raw.get("spec") or {}).get("nodeName", ""),
        ready=component == COMPONENT_COORDINATOR and bool(_true(conditions, "Ready")),
        disruption=disruption.get("reason", ""),
        disruption_message=disruption.get("message", ""),
        unscheduled=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        restarts=container.get("restartCount", 0),
        running_since=_time((state.get("running") or {}).get("startedAt")),
        started="running" in state and container.get("started") is not False,
        waiting=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        ended=_end(state.get("terminated")),
        last_end=_end((container.get("lastState") or {}).get("terminated")),
        deletion_cost=annotations.get("controller.kubernetes.io/pod-deletion-cost", ""),
    )


def view_owned(kind: str, raw: Raw) -> OwnedView:
    """What is kept of an object of a job; of most kinds only the metadata was asked for."""
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    template = ((spec.get("template") or {}).get("metadata") or {}).get("annotations") or {}
    return OwnedView(
        kind=kind,
        name=metadata["name"],
        uid=metadata["uid"],
        controller=controller_of(metadata),
        applied=annotations.get(ANNOTATION_APPLIED, ""),
        built_for=annotations.get(ANNOTATION_BUILT_FOR, ""),
        template=template.get(ANNOTATION_TEMPLATE, ""),
        deleting="deletionTimestamp" in metadata,
        replicas=spec.get("replicas"),
        version=int(metadata["resourceVersion"]),
    )


def controller_of(metadata: Raw) -> Controller | None:
    """Who an object belongs to, or None."""
    owners = metadata.get("ownerReferences") or ()
    owner = next((owner for owner in owners if owner.get("controller")), None)
    if owner is None:
        return None
    group, slash, _ = owner["apiVersion"].rpartition("/")
    return Controller(f"{owner['kind']}.{group}" if slash else owner["kind"], owner["name"], owner["uid"])


def _container(status: Raw, spec: Raw) -> Raw:
    """The first container of the pod's own list: sidecars that others inject come after it or elsewhere."""
    names = [container["name"] for container in spec.get("containers") or ()]
    known = {container["name"]: container for container in status.get("containerStatuses") or ()}
    empty: Raw = {}
    return next((known[name] for name in names if name in known), empty)


def _end(terminated: Raw | None) -> ContainerEnd | None:
    if terminated is None:
        return None
    return ContainerEnd(
        exit_code=terminated.get("exitCode", 0),
        signal=terminated.get("signal", 0),
        reason=terminated.get("reason", ""),
        message=terminated.get("message", ""),
        finished_at=_time(terminated.get("finishedAt")) or 0.0,
    )


def _true(conditions: Mapping[str, Raw], kind: str) -> Raw:
    condition = conditions.get(kind)
    empty: Raw = {}
    return condition if condition is not None and condition.get("status") == "True" else empty


def _time(text: str | None) -> float | None:
    return None if text is None else seconds(text)
