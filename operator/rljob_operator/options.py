"""Options of the operator: what the cluster's administrator decides, for all jobs. Read from a YAML file (`--config`).

The Helm chart writes the file; `build` and the adapters read the values.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints, model_validator

from rljob_api.base import ApiModel
from rljob_api.quantity import Quantity

CLAIM_NAME = "jobs.rljob.dev"
"""The Lease by which a release of the operator claims a namespace, in that namespace (`kube.namespace_claims`)."""


class OptionsRefused(ValueError):
    """The API server does not take what the operator would make of its options: a sentence for each problem."""


class PullPolicy(StrEnum):
    """When the kubelet asks the registry for an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class CoordinatorAccess(StrEnum):
    """How the operator reaches the coordinator of a job."""

    SERVICE = "Service"
    PROXY = "Proxy"


class Isolation(StrEnum):
    """Whether jobs get a NetworkPolicy each."""

    NETWORK_POLICY = "NetworkPolicy"
    NONE = "None"


NamePattern = Annotated[str, StringConstraints(pattern=r"^[*]?[-a-z0-9.]{1,253}$")]
KeyPattern = Annotated[str, StringConstraints(pattern=r"^[*]?[-A-Za-z0-9_./]{1,317}$")]


class ReservedObjects(ApiModel):
    """Objects of the jobs' namespaces that no job may name, beside those that `podTemplate` and `pullSecrets` name.

    Each list has names; `*` at the beginning of one stands for anything. A job may name what it makes itself.
    """

    secrets: list[NamePattern] = []
    """Secrets. `*-secret`: those of other jobs among them."""
    config_maps: list[NamePattern] = []
    """ConfigMaps."""
    persistent_volume_claims: list[NamePattern] = []
    """PersistentVolumeClaims."""
    service_accounts: list[NamePattern] = []
    """ServiceAccounts."""
    resource_claims: list[NamePattern] = []
    """ResourceClaims."""


class ForeignPods(StrEnum):
    """Whether templates of jobs may count pods of others."""

    REFUSED = "Refused"
    ALLOWED = "Allowed"


class ReachOptions(ApiModel):
    """How far templates of jobs reach beyond their job."""

    foreign_pods: ForeignPods = ForeignPods.REFUSED
    """Refused: anti-affinity and topology spread that are required count pods of the job alone. Allowed: also pods of
    others, whom an anti-affinity keeps off the node (or zone) as long as the job's pod is there."""
    max_grace_period_seconds: int = Field(default=3600, ge=1, le=604800)
    """Longest terminationGracePeriodSeconds of a template, and sleep before a container is stopped: so long a node that
    is drained waits."""
    refused_labels: list[KeyPattern] = [
        "*kubernetes.io/",
        "scheduling.x-k8s.io/",
        "*sigs.k8s.io",
        "kueue.x-k8s.io/pod-group",
        "kueue.x-k8s.io/priority-class",
        "*volcano.sh/",
        "yunikorn.apache.org/",
        "*koordinator.sh/",
        "kai.scheduler/",
        "pod-template-hash",
        "controller-revision-hash",
    ]
    """Beginnings that keys of a template's labels may not have or, after `*`, contain: by these Services, workloads and
    schedulers of others choose pods. Those of rljob.dev/ are always the operator's."""
    refused_annotations: list[KeyPattern] = [
        "scheduling.k8s.io/",
        "*volcano.sh/",
        "yunikorn.apache.org/",
        "*koordinator.sh/",
        "pod-group-name",
    ]
    """The same for its annotations, by which schedulers know groups of pods."""


ANY_NAMESPACE = "*"
"""In the place of a namespace's name."""


class WorkloadOptions(ApiModel):
    """What pods of jobs are made of."""

    worker_image: str = "rljob-worker:latest"
    """Image of workers and coordinator, unless the job names one."""
    redis_image: str = "redis:8.2"
    """Image of the Redis pods, unless the job names one."""
    pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    """Of all of them."""
    pull_secrets: list[str] = []
    """Names of image pull secrets in the jobs' namespaces."""
    python: str = "python"
    """The program in the worker image."""
    redis_server: str = "redis-server"
    """The program in the Redis image."""
    redis_ping: list[str] = ["redis-cli", "ping"]
    """A command in the Redis image that fails or hangs unless the server answers it (the password is in REDISCLI_AUTH):
    the liveness probe. Empty: the image has none, and a server that is stopped or wedged is not restarted by itself."""
    pod_template: dict[str, Any] = {}
    """A patch of every pod's template, before the job's own: tolerations, mounts, a runtime class, a sidecar.
    Containers, volumes, mounts and rights that it brings no job changes (`build.template_protection`)."""
    reserved_objects: ReservedObjects = ReservedObjects()
    """Objects that no job may name (`build.foreign_objects`)."""
    reach: ReachOptions = ReachOptions()
    """How far templates of jobs reach beyond their job (`build.reach`)."""
    termination_grace_seconds: int = Field(default=60, ge=1, le=86400)
    """How long a worker pod may drain."""
    shared_memory: Quantity = "16Gi"
    """Size of /dev/shm for each rank, in worker pods that have no memory limit; it takes up what is in it: three weight
    versions at most. A model.config that needs more gets more."""
    isolation: Isolation = Isolation.NETWORK_POLICY
    """NetworkPolicy: a job's pods talk to each other, and only the operator and the scraper to them."""
    scraper_namespace: str | None = None
    """Namespace whose pods may read metrics; `*`: any; null: none."""
    operator_namespace: str | None = None
    """Namespace of the operator's pods, which may ask a job's coordinator; null: any."""
    operator_labels: dict[str, str] = {"app.kubernetes.io/name": "rljob-operator"}
    """Labels of the operator's pods."""
    monitor_labels: dict[str, str] = {}
    """Labels of a job's PodMonitor, by which a Prometheus chooses what it scrapes."""


class LeaseOptions(ApiModel):
    """The Lease that one of several replicas holds (coordination.k8s.io)."""

    name: str = "rljob-operator"
    namespace: str | None = None
    """Null: the operator's own, from `POD_NAMESPACE`."""
    duration_seconds: float = Field(default=30, gt=0, le=3600)
    """A leader that has not renewed for this long has lost it: so long a killed leader's jobs wait for the next one."""
    renew_seconds: float = Field(default=20, gt=0, le=3600)
    """A leader that could not renew for this long gives up; long enough for a node and an API server that are busy."""
    retry_seconds: float = Field(default=2, gt=0, le=3600)
    """Between two attempts."""

    @model_validator(mode="after")
    def _in_order(self) -> "LeaseOptions":
        if self.retry_seconds < self.renew_seconds < self.duration_seconds:
            return self
        raise ValueError(
            f"durationSeconds {self.duration_seconds:g}, renewSeconds {self.renew_seconds:g} and retrySeconds "
            f"{self.retry_seconds:g} must fall in this order, else two replicas could lead at once. "
            "Set for example 30, 20 and 2."
        )


class KueueOptions(ApiModel):
    """Queues of Kueue."""

    enabled: bool = False
    """Whether jobs may name one: the operator then makes and follows Workloads, for which it needs rights."""


class OperatorOptions(ApiModel):
    """The whole file."""

    workloads: WorkloadOptions = WorkloadOptions()
    """What pods of jobs are made of."""
    namespaces: list[str] = []
    """Namespaces whose jobs are served; empty: all."""
    lease: LeaseOptions | None = LeaseOptions()
    """Null: there is no other replica."""
    coordinator_access: CoordinatorAccess = CoordinatorAccess.SERVICE
    """Service: from inside the cluster. Proxy: through the API server, for an operator outside."""
    kueue: KueueOptions = KueueOptions()
    """Whether Kueue admits jobs that have a queue."""
    concurrency: int = Field(default=16, ge=1, le=256)
    """Jobs that are looked at at the same time."""
    jobs_per_namespace: int | None = Field(default=None, ge=1, le=100000)
    """Jobs of a namespace that are served at the same time, ended ones not counted; null: any number."""
    health_port: int = Field(default=8080, ge=0, le=65535)
    """`/healthz`, `/readyz`."""
    metrics_port: int = Field(default=9090, ge=0, le=65535)
    """`/metrics`."""
