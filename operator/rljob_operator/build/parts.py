"""What a build is made from, and the parts of a job that have pods. Values only."""

from dataclasses import dataclass
from typing import Any

from rljob_api import cluster
from rljob_api.names import Role
from rljob_api.revision import revision
from rljob_api.spec import RLJob
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


@dataclass(frozen=True, slots=True)
class Site:
    """A job and its place: what every object is made from."""

    job: RLJob
    owner: Owner
    options: OperatorOptions
    revision: str
    """What the objects are built for; every object says it, and working it out takes longer than all the rest."""

    @classmethod
    def of(cls, job: RLJob, owner: Owner, options: OperatorOptions) -> "Site":
        """With the revision of the job's spec."""
        return cls(job, owner, options, revision(job.spec))

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
CONTAINERS = (WORKER_CONTAINER, COORDINATOR_CONTAINER, REDIS_CONTAINER)
"""Every container that the operator makes has one of these names."""
CONTAINER_OF = {
    cluster.COMPONENT_WORKER: WORKER_CONTAINER,
    cluster.COMPONENT_COORDINATOR: COORDINATOR_CONTAINER,
    cluster.COMPONENT_CONTROL: REDIS_CONTAINER,
    cluster.COMPONENT_STORAGE: REDIS_CONTAINER,
}
"""Component -> its container."""
