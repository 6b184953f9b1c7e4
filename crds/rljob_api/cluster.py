"""A job on Kubernetes: names of its objects, labels, ports and paths.

Read by the operator that makes the objects and by the workers that live in them; it knows nothing but names.
"""

from rljob_api.names import Role

API_GROUP = "rljob.dev"
API_VERSION = "v1alpha1"
RLJOB_KIND = "RLJob"
RLJOB_PLURAL = "rljobs"

LABEL_JOB = "rljob.dev/job"
"""On every object and pod of a job: the job's name. Watches select by its presence."""
LABEL_COMPONENT = "rljob.dev/component"
"""On every object and pod: one of `Component`."""
LABEL_ROLE = "rljob.dev/role"
"""On the pods and Deployment of a role: the role's value, e.g. `actor_fwd`."""
LABEL_POD_GROUP = "scheduling.x-k8s.io/pod-group"
"""On every pod of a gang: the name of its PodGroup, by which scheduler-plugins knows it."""
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
"""On an RLJob: the LocalQueue that admits it, as `spec.scheduling.queueName` says."""
LABEL_PRIORITY = "kueue.x-k8s.io/priority-class"
"""On an RLJob: its WorkloadPriorityClass, for Kueue alone."""
ANNOTATION_REQUESTS = "rljob.dev/requests"
"""On a Workload: digest of what its pods ask for, apart from their numbers."""
ANNOTATION_TEMPLATE = "rljob.dev/template"
"""On a pod template: digest of the rest of the template, so that a pod of an older one is known. It holds nothing of
the spec that does not already roll the pods."""
ANNOTATION_APPLIED = "rljob.dev/applied"
"""On an applied object: digest of the manifest as the operator applied it."""
ANNOTATION_BUILT_FOR = "rljob.dev/built-for"
"""On an applied object: the revision of the spec that it was built for. An operator of another version leaves objects
of the current revision as they are."""

ANNOTATION_RUN = "rljob.dev/run"
"""On a checkpoint claim: digest of what makes its checkpoints a run (`rljob_api.revision`)."""
ANNOTATION_RUN_OF = "rljob.dev/run-of"
"""On a checkpoint claim: uid of the job that trains it, or did last."""
ANNOTATION_SPEC = "rljob.dev/spec"
"""On a checkpoint claim: that job's spec, as JSON of what was given."""
ANNOTATION_RETAINED = "rljob.dev/kept"
"""On a checkpoint claim: digest of these three, and of whether it goes with its job."""
ANNOTATION_RECORDED = "rljob.dev/recorded"
"""On a checkpoint claim: the last recorded version and its folder, once its job has ended or was suspended."""

COMPONENT_WORKER = "worker"
COMPONENT_COORDINATOR = "coordinator"
COMPONENT_CONTROL = "control"
COMPONENT_STORAGE = "storage"
COMPONENT_TRACKER = "tracker"
"""Beginning of a component's name, before that of the tracker: each has a Deployment of its own."""

COORDINATOR_PORT = 8080
REDIS_PORT = 6379
METRICS_PORT = 8081
"""Port of a coordinator's pod and of a worker's with `/metrics`, for scrapers."""
PROBE_PORT = 8082
"""Port of the same pods for the kubelet, which asks from the node. No NetworkPolicy opens it to pods of others."""

RUN_DIR = "/var/lib/rljob"
"""Run folder in worker and coordinator pods. For actor, critic and coordinator it is the checkpoint volume (with
`checkpoints/` and `samples.jsonl` in it), for the other roles an emptyDir."""
STATE_DIR = "/run/rljob"
"""An emptyDir that outlives a container and not its pod: the count of container starts lies there."""
PRETENDED_DEVICES = "RLJOB_DEVICES"
"""Environment: devices that are not there (`machine_devices`). A template may set it, on a cluster for tests."""
WEIGHTS_DIR = "/dev/shm/rljob"  # noqa: S108 - the pod's own memory volume
SECRET_DIR = "/etc/rljob/secret"  # noqa: S105 - a path
"""Files `token` and `redis-password`."""
JOB_FILE = "/etc/rljob/job/job.json"
"""The resolved RLJob as it was when the pod was made; the coordinator sends the job that an epoch runs with."""


TERMINATION_FILE = "/dev/termination-log"
"""Where a container leaves the message of its end, unless a template gives it another terminationMessagePath."""
ASKED_TO_END = "it was asked to end (SIGTERM) while its loop turned"
"""The launcher's termination message."""


RUN_NAME_FILE = "tracked-run"
"""In the coordinator's run folder: the name of the run at trackers, drawn once for each volume."""
TRACKERS_FOLDER = "trackers"
"""In the run folder: all that processes of trackers may write to."""


CRITIC_PART = "critic"
"""Folder below a checkpoint's that transformers loads the critic from."""


LATEST = "latest"
"""A link beside the folders of checkpoints, to the one that was recorded last: for programs that load it as a model,
also after its job is gone. A restart goes by the record file."""


def deployment_name(job: str, role: Role) -> str:
    """The Deployment of a role."""
    return f"{job}-{role.value.replace('_', '-')}"


def coordinator_name(job: str) -> str:
    """Deployment and Service of the coordinator."""
    return f"{job}-coordinator"


def tracker_component(tracker: str) -> str:
    """The component that feeds this tracker."""
    return f"{COMPONENT_TRACKER}-{tracker}"


def coordinator_budget_name(job: str) -> str:
    """The PodDisruptionBudget of the coordinator alone; the whole job's has the job's name, which has no dot."""
    return f"{job}.coordinator"


def tracker_name(job: str, tracker: str) -> str:
    """Deployment and NetworkPolicy of what feeds this tracker."""
    return f"{job}-{tracker_component(tracker)}"


def control_name(job: str) -> str:
    """StatefulSet and Service of the control Redis."""
    return f"{job}-control"


def control_claim_name(job: str) -> str:
    """PersistentVolumeClaim of the control Redis, named as a StatefulSet does: up to release 0.2.0 one made it."""
    return f"data-{control_name(job)}-0"


def storage_name(job: str) -> str:
    """StatefulSet and headless Service of the storage units."""
    return f"{job}-storage"


def storage_unit_name(job: str, unit: int) -> str:
    """Pod of storage unit `unit`, and the Service that keeps its address over restarts."""
    return f"{storage_name(job)}-{unit}"


def workload_name(job: str) -> str:
    """Kueue's Workload of a job with a queue: always the same, so that no job has two."""
    return job


def secret_name(job: str) -> str:
    """Token and Redis password."""
    return f"{job}-secret"


def secret_copy_name(job: str) -> str:
    """The same once more, from which the Secret is made again where it was deleted.

    No job's name has a dot, so that it is no other job's Secret; and patterns that reserve `*-secret` match it.
    """
    return secret_name(f"{job}.copy")


def config_name(job: str) -> str:
    """ConfigMap with the resolved job."""
    return f"{job}-job"


def checkpoint_claim_name(job: str) -> str:
    """PersistentVolumeClaim of the checkpoints, where the spec names none."""
    return f"{job}-checkpoints"


def service_host(name: str, namespace: str) -> str:
    """How a Service is reached from any pod."""
    return f"{name}.{namespace}.svc"
