"""What every object of a job is made from: the site, its parts with pods, their labels, owner, digests and replicas.

Values and pure functions. A digest covers what an object was built for, so that an unchanged object is not built again.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from rljob_api import cluster
from rljob_api.cluster_rules import required_replicas
from rljob_api.names import Role
from rljob_api.revision import revision
from rljob_api.spec import CleanPodPolicy, RLJob, RLJobSpec, Tracker
from rljob_api.status import ConditionType, QueueStatus, RLJobStatus
from rljob_operator.options import OperatorOptions, WorkloadOptions

Manifest = dict[str, Any]
"""An object as YAML has it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """What identifies the RLJob beside its manifest: every object lies in its namespace and refers to it."""

    namespace: str
    uid: str


@dataclass(frozen=True, slots=True)
class Platform:
    """What the cluster offers beyond Kubernetes itself."""

    pod_monitors: bool = False
    """The CRD PodMonitor of the Prometheus operator is there."""
    pod_groups: bool = False
    """The CRD PodGroup of scheduler-plugins is there."""
    device_claims: bool = False
    """Dynamic Resource Allocation is served."""
    workloads: bool = False
    """Kueue's Workloads are there, and the operator's options let it use them."""


@dataclass(frozen=True, slots=True)
class Site:
    """A job and its place: what every object is made from."""

    job: RLJob
    owner: Owner
    options: OperatorOptions
    revision: str
    """What the objects are built for; every object carries it, and computing it takes longer than all the rest."""
    queue: QueueStatus | None = None
    """The admission that the job was started with."""

    @classmethod
    def of(cls, job: RLJob, owner: Owner, options: OperatorOptions, queue: QueueStatus | None = None) -> "Site":
        """With the revision of the job's spec, and of what the admission adds to it."""
        made_for = revision(job.spec)
        if queue is not None and queue.pod_sets:
            made_for += f"-{digest([each.model_dump() for each in queue.pod_sets])}"
        return cls(job, owner, options, made_for, queue)

    @property
    def name(self) -> str:
        """The job's name, with which all names begin."""
        return self.job.metadata.name

    @property
    def workloads(self) -> WorkloadOptions:
        """What pods are made of."""
        return self.options.workloads


@dataclass(frozen=True, slots=True)
class Part:
    """A set of pods with one template."""

    component: str
    """One of `rljob_api.cluster.COMPONENT_*`."""
    container: str
    """Name of its only container."""
    role: Role | None = None


WORKER_CONTAINER = "worker"


COORDINATOR_CONTAINER = "coordinator"


REDIS_CONTAINER = "redis"


TRACKER_CONTAINER = "tracker"


ROLE_CONTAINERS = (WORKER_CONTAINER,)
INFRASTRUCTURE_CONTAINERS = (COORDINATOR_CONTAINER, REDIS_CONTAINER, TRACKER_CONTAINER)
CONTAINERS = (*ROLE_CONTAINERS, *INFRASTRUCTURE_CONTAINERS)
"""Every container that the operator makes has one of these names: the first are patched by `roles.*.template`, the
others by `infrastructure.template`. The chart's admission policy has the same lists (`helm.policy_table`)."""


COORDINATOR_PART = Part(cluster.COMPONENT_COORDINATOR, COORDINATOR_CONTAINER)
CONTROL_PART = Part(cluster.COMPONENT_CONTROL, REDIS_CONTAINER)
STORAGE_PART = Part(cluster.COMPONENT_STORAGE, REDIS_CONTAINER)


def role_part(role: Role) -> Part:
    """The pods of a role."""
    return Part(cluster.COMPONENT_WORKER, WORKER_CONTAINER, role)


def tracker_part(tracker: Tracker) -> Part:
    """The pod that feeds a tracker. It belongs to no gang, and to nothing that the job waits for."""
    return Part(cluster.tracker_component(tracker.value), TRACKER_CONTAINER)


def trackers(job: RLJob) -> tuple[Tracker, ...]:
    """Those that the job reports to, each once."""
    return tuple(dict.fromkeys(job.spec.telemetry.report_to or ()))


TRACKER_PARTS = tuple(tracker_part(tracker) for tracker in Tracker)


def part_of(labels: dict[str, str]) -> Part:
    """The part whose `part_labels` these are."""
    if cluster.LABEL_ROLE in labels:
        return role_part(Role(labels[cluster.LABEL_ROLE]))
    parts = (COORDINATOR_PART, CONTROL_PART, STORAGE_PART, *TRACKER_PARTS)
    return next(part for part in parts if part.component == labels[cluster.LABEL_COMPONENT])


def digest(value: Any) -> str:  # noqa: ANN401 - JSON
    """Digest of any JSON value; the order of keys does not count."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


_STANDARD = {"app.kubernetes.io/name": "rljob", "app.kubernetes.io/managed-by": "rljob-operator"}


def job_labels(site: Site) -> dict[str, str]:
    """On every object."""
    return {**_STANDARD, "app.kubernetes.io/instance": site.name, cluster.LABEL_JOB: site.name}


def part_labels(site: Site, part: Part) -> dict[str, str]:
    """On a part's objects and pods."""
    role = {} if part.role is None else {cluster.LABEL_ROLE: part.role.value}
    return {**job_labels(site), cluster.LABEL_COMPONENT: part.component, **role}


def selector(site: Site, part: Part) -> dict[str, str]:
    """What a part's pods are selected by. Never changes: a Deployment's selector cannot."""
    role = {} if part.role is None else {cluster.LABEL_ROLE: part.role.value}
    return {cluster.LABEL_JOB: site.name, cluster.LABEL_COMPONENT: part.component, **role}


def manifest(
    site: Site,
    kind: tuple[str, str],
    name: str,
    body: dict[str, Any],
    part: Part | None = None,
    labels: dict[str, str] | None = None,
) -> Manifest:
    """An object of `kind` (apiVersion, kind) with everything but its metadata in `body`; `labels` come on top."""
    own = job_labels(site) if part is None else part_labels(site, part)
    made: Manifest = {
        "apiVersion": kind[0],
        "kind": kind[1],
        "metadata": {
            "name": name,
            "namespace": site.owner.namespace,
            "labels": {**(labels or {}), **own},
            "ownerReferences": [owner_reference(site)],
        },
        **body,
    }
    # What it was built for counts in the digest: an unchanged object must name a new revision too, or a later
    # version of the operator would take it for one of an older revision and build it again.
    built_for = {cluster.ANNOTATION_BUILT_FOR: site.revision}
    made["metadata"]["annotations"] = {
        **built_for,
        cluster.ANNOTATION_APPLIED: digest({**made, "annotations": built_for}),
    }
    return made


def owner_reference(site: Site) -> dict[str, Any]:
    """The reference of every object to the job that it belongs to."""
    # Without blockOwnerDeletion, which wants a right on the owner's finalizers and would let a deletion wait.
    return {
        "apiVersion": site.job.api_version,
        "kind": site.job.kind,
        "name": site.name,
        "uid": site.owner.uid,
        "controller": True,
    }


_ENDED = (ConditionType.SUCCEEDED, ConditionType.FAILED)


def role_replicas(site: Site, status: RLJobStatus, role: Role) -> int:
    """Pods of a role: as many as the status has, draining ones among them; those it begins with before it has any."""
    if _workers_gone(site.job.spec, status) or status.restart.releasing:
        return 0
    known = next((found for found in status.roles if found.name == role), None)
    if known is not None:
        return len(known.pods)
    return 0 if site.job.spec.suspend else required_replicas(site.job.spec)[role]


def infrastructure_replicas(site: Site, status: RLJobStatus, replicas: int) -> int:
    """Pods of the coordinator or of Redis, `replicas` while the job needs them."""
    spec = site.job.spec
    if _is(status, ConditionType.SUSPENDED) or (spec.suspend and not status.roles):
        return 0
    return 0 if _ended(status) and spec.clean_pod_policy is CleanPodPolicy.ALL else replicas


def tracker_replicas(site: Site, status: RLJobStatus) -> int:
    """One while the job may train: at its end the process gives the rest, closes the run and goes."""
    return 0 if _ended(status) else infrastructure_replicas(site, status, 1)


def _workers_gone(spec: RLJobSpec, status: RLJobStatus) -> bool:
    return _is(status, ConditionType.SUSPENDED) or (_ended(status) and spec.clean_pod_policy is not CleanPodPolicy.NONE)


def _ended(status: RLJobStatus) -> bool:
    return any(_is(status, condition) for condition in _ENDED)


def _is(status: RLJobStatus, condition: ConditionType) -> bool:
    return any(found.type is condition and found.status == "True" for found in status.conditions)
