"""Views: the part of an object of the API server that the operator keeps, since there are very many. Pure."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from rljob_api.cluster import (
    ANNOTATION_APPLIED,
    ANNOTATION_BUILT_FOR,
    ANNOTATION_RECORDED,
    ANNOTATION_RETAINED,
    ANNOTATION_RUN,
    ANNOTATION_RUN_OF,
    ANNOTATION_SPEC,
    ANNOTATION_TEMPLATE,
    API_GROUP,
    COMPONENT_COORDINATOR,
    LABEL_COMPONENT,
    LABEL_JOB,
    LABEL_ROLE,
    RLJOB_KIND,
)
from rljob_api.times import seconds
from rljob_operator.kube.api import FIELD_MANAGER
from rljob_operator.kube.workload_view import WorkloadView, view_workload

Raw = Mapping[str, Any]


ON_ITS_WAY = ("", "ContainerCreating", "PodInitializing")
"""Of a container that waits for nothing but its turn."""


_EXPANSION = ("ControllerResizeError", "NodeResizeError", "FileSystemResizePending", "Resizing")
"""Conditions of a claim about its expansion, first the one that blocks it."""


class JobKey(NamedTuple):
    """A job's place in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Controller:
    """Who an object belongs to: its one owner reference with `controller` set."""

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
    """Of the coordinator only: the readiness of other pods comes from the coordinator."""
    disruption: str
    """Reason of the condition DisruptionTarget."""
    disruption_message: str
    disrupted_at: float | None
    """When the condition was set; None while there is none."""
    unscheduled: str
    """Why no node was found, as the scheduler reports it."""
    unscheduled_reason: str
    """The scheduler's reason: Unschedulable, SchedulingGated."""
    scheduler: str
    """Whose turn it is to find a node, by schedulerName."""
    is_tried: bool
    """A scheduler has handled it, or it has a node."""
    restarts: int
    running_since: float | None
    """Unix time by its node's clock, unlike `created_at` and `gone_by`, which are by the API server's."""
    started: bool
    """It runs, and is past its start-up probe."""
    image: str
    waiting: str
    """Why the container waits; `Init:` and the reason of an init container that keeps it waiting."""
    waiting_message: str
    ended: ContainerEnd | None
    """While it has ended and not been started again."""
    last_end: ContainerEnd | None
    deletion_cost: str
    memory_limit: str = ""
    """Memory limit of its container; "": it has none."""
    is_limit_ranged: bool = False
    """The limit is that of a LimitRange, as the API server notes it, and not the job's."""


@dataclass(frozen=True, slots=True)
class ClaimView:
    """What a PersistentVolumeClaim has beyond its metadata, and what it records of the checkpoints on it."""

    run: str = ""
    """Digest of the run whose checkpoints it has; "" where the operator did not note one."""
    run_of: str = ""
    """Uid of the job that trains that run, or did last."""
    spec: str = ""
    """That job's, as the claim keeps it."""
    retained: str = ""
    """Digest of these."""
    recorded: str = ""
    size: str = ""
    """What it asks for."""
    capacity: str | None = None
    """What its volume has."""
    expansion_message: str = ""


@dataclass(frozen=True, slots=True)
class OwnedView:
    """An object with a job's label or name: one that the operator has applied, or a foreign one."""

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
    refused: str = ""
    """Why the pods of a Deployment cannot be made, as the API server reports it: a quota, an admission webhook."""
    claim: ClaimView | None = None
    """Of a PersistentVolumeClaim."""
    owned: str = ""
    """Fields that the operator's applies own, as in `managedFields`, but for the owner reference; "": none."""
    finalizers: tuple[str, ...] = ()
    workload: WorkloadView | None = None
    """Facts of a Workload."""
    makes_claims: bool = False
    """A StatefulSet that has templates of claims."""
    version: int = field(default=0, compare=False)
    """Of two views of one object (uid) the one with the greater number is the later; it alone is no change."""


def job_of(raw: Raw) -> JobKey | None:
    """The job that an object belongs to: by its controller, where that is an RLJob, or else by its label."""
    metadata = raw["metadata"]
    controller = controller_of(metadata)
    is_owned = controller is not None and controller.kind == f"{RLJOB_KIND}.{API_GROUP}"
    name = controller.name if controller is not None and is_owned else (metadata.get("labels") or {}).get(LABEL_JOB)
    return JobKey(metadata["namespace"], name) if name else None


def view_pod(raw: Raw) -> PodView:
    """The part of a pod that is retained."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    component, spec = labels.get(LABEL_COMPONENT, ""), raw.get("spec") or {}
    container = _container(status, spec)
    state = container.get("state") or {}
    waiting = _waiting(status, state)
    disruption = _true(conditions, "DisruptionTarget")
    scheduled = conditions.get("PodScheduled") or {}
    first: Raw = next(iter(spec.get("containers") or ()), {})
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
        node=spec.get("nodeName", ""),
        ready=component == COMPONENT_COORDINATOR and bool(_true(conditions, "Ready")),
        disruption=disruption.get("reason", ""),
        disrupted_at=_time(disruption.get("lastTransitionTime")),
        disruption_message=disruption.get("message", ""),
        unscheduled=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        unscheduled_reason=scheduled.get("reason", "") if scheduled.get("status") == "False" else "",
        scheduler=spec.get("schedulerName", ""),
        is_tried=bool(scheduled) or bool(spec.get("nodeName")),
        restarts=container.get("restartCount", 0),
        running_since=_time((state.get("running") or {}).get("startedAt")),
        started="running" in state and container.get("started") is not False,
        image=first.get("image", ""),
        waiting=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        ended=_end(state.get("terminated")),
        last_end=_end((container.get("lastState") or {}).get("terminated")),
        deletion_cost=annotations.get("controller.kubernetes.io/pod-deletion-cost", ""),
        memory_limit=((first.get("resources") or {}).get("limits") or {}).get("memory", ""),
        is_limit_ranged=_is_limit_ranged(annotations.get("kubernetes.io/limit-ranger", ""), first.get("name", "")),
    )


def _is_limit_ranged(note: str, container: str) -> bool:
    """By the API server's note: `LimitRanger plugin set: cpu, memory request for container a; memory limit for ...`."""
    parts = [part.strip() for part in note.partition(":")[2].split(";")]
    return any("memory" in part and part.endswith(f" limit for container {container}") for part in parts)


def view_owned(kind: str, raw: Raw) -> OwnedView:
    """The part of a job's object that is retained; of most kinds only the metadata was requested."""
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
        refused=_refused(raw),
        claim=_claim(raw) if kind == "PersistentVolumeClaim" else None,
        owned=_owned(metadata),
        finalizers=tuple(metadata.get("finalizers") or ()),
        workload=view_workload(raw) if kind == "Workload" else None,
        makes_claims=bool(spec.get("volumeClaimTemplates")),
        version=int(metadata["resourceVersion"]),
    )


def owned_fields(view: OwnedView) -> Raw:
    """Fields that the operator's applies own."""
    found: Raw = orjson.loads(view.owned) if view.owned else {}
    return found


def _owned(metadata: Raw) -> str:
    """One text for all objects of one shape: there are very many, of few shapes."""
    for entry in metadata.get("managedFields") or ():
        if (entry.get("manager"), entry.get("operation"), entry.get("subresource", "")) == (FIELD_MANAGER, "Apply", ""):
            fields = entry.get("fieldsV1") or {}
            own = {name: below for name, below in fields.get("f:metadata", {}).items() if name != "f:ownerReferences"}
            text = orjson.dumps({**fields, "f:metadata": own}, option=orjson.OPT_SORT_KEYS).decode()
            return sys.intern(text)
    return ""


def _claim(raw: Raw) -> ClaimView:
    annotations = raw["metadata"].get("annotations") or {}
    status = raw.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or () if each.get("status") == "True"}
    messages = [conditions[name].get("message", "") for name in _EXPANSION if name in conditions]
    return ClaimView(
        run=annotations.get(ANNOTATION_RUN, ""),
        run_of=annotations.get(ANNOTATION_RUN_OF, ""),
        spec=annotations.get(ANNOTATION_SPEC, ""),
        retained=annotations.get(ANNOTATION_RETAINED, ""),
        recorded=annotations.get(ANNOTATION_RECORDED, ""),
        size=((raw.get("spec") or {}).get("resources") or {}).get("requests", {}).get("storage", ""),
        capacity=(status.get("capacity") or {}).get("storage"),
        expansion_message=next(filter(None, messages), ""),
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


def _waiting(status: Raw, state: Raw) -> Raw:
    """What the container waits for; what keeps an init container from its end, which it waits for, too.

    An init container that ends well, or stays as a sidecar, is followed by the next: at most one is reported.
    """
    own: Raw = state.get("waiting") or {}
    if state and own.get("reason") != "PodInitializing":
        return own
    for container in status.get("initContainerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason in ON_ITS_WAY:
            continue
        last = _end((container.get("lastState") or {}).get("terminated"))
        ended = (
            f"it ended with code {last.exit_code}, {last.message.strip() or last.reason}" if last is not None else ""
        )
        message = "; ".join(filter(None, (waiting.get("message", ""), ended)))
        return {"reason": f"Init:{reason}", "message": f"init container {container['name']}: {message}"}
    return own


def _refused(raw: Raw) -> str:
    """A Deployment's controller reports it for its ReplicaSet's pods and for the ReplicaSet itself."""
    for condition in (raw.get("status") or {}).get("conditions") or ():
        kind, state, reason = condition["type"], condition["status"], condition.get("reason", "")
        if (kind, state) == ("ReplicaFailure", "True") or (kind, state, reason) == (
            "Progressing",
            "False",
            "ReplicaSetCreateError",
        ):
            message: str = condition.get("message", "")
            return message or reason
    return ""


def _end(terminated: Raw | None) -> ContainerEnd | None:
    if terminated is None:
        return None
    return ContainerEnd(
        exit_code=terminated.get("exitCode", 0),
        signal=terminated.get("signal", 0),
        reason=terminated.get("reason", ""),
        message=terminated.get("message", ""),
    )


def _true(conditions: Mapping[str, Raw], kind: str) -> Raw:
    condition = conditions.get(kind)
    empty: Raw = {}
    return condition if condition is not None and condition.get("status") == "True" else empty


def _time(text: str | None) -> float | None:
    return None if text is None else seconds(text)
