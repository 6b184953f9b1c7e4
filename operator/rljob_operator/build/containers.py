"""What the containers of all parts share: security context, probes, resources and volumes.

Pods follow the Pod Security Standard "restricted", with a read-only root file system. Pure.
"""

import string
from decimal import Decimal
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

from rljob_api import cluster
from rljob_api.model_files.size import num_parameters
from rljob_api.names import Role
from rljob_api.quantity import value
from rljob_api.spec import RLJob
from rljob_api.spec.infrastructure import ResourcesSpec
from rljob_api.spec.roles import RoleSpec
from rljob_api.staged_weights import staged_bytes
from rljob_operator.build.parts import Site

USER = 10001
"""User and group of every process, for any image; the group owns the volumes."""


def pod_security() -> dict[str, Any]:
    """Fields of a pod's spec."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            # A checkpoint volume is large: its files change hands once, not at every start of a pod.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def container_security() -> dict[str, Any]:
    """Fields of a container."""
    return {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
    }


TERMINATION_MESSAGE = "FallbackToLogsOnError"
"""Termination message policy: the end of a container's log explains its end, and status and events quote it."""


_STOPPED_GRACE_SECONDS = 5
"""A container that fails its liveness probe does not handle SIGTERM either: it is not given its drain."""


_START_SECONDS = 900
"""For imports, at least: `engine.startupTimeoutSeconds` is for a machine or a disk that needs longer."""


METRICS_PORT_NAME, PROBE_PORT_NAME = "metrics", "probes"
"""The kubelet's port is no other client's: half requests of those never keep it from an answer."""


def worker_probes(startup_seconds: int) -> dict[str, Any]:
    """Of a launcher. Startup is its imports: seconds with byte code, minutes on a machine that swaps."""
    return {
        "startupProbe": {**_http("/startupz"), **_startup(startup_seconds)},
        # Within a second of the coordinator's answer, so that `kubectl rollout status` and the budget see a restart.
        "readinessProbe": {**_http("/readyz"), "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1},
        # About the heartbeat's time: the launcher's loop never computes, so half a minute of silence is the end of it.
        "livenessProbe": {**_liveness(), **_http("/livez"), "failureThreshold": 6},
    }


def coordinator_probes(startup_seconds: int) -> dict[str, Any]:
    """Of the coordinator: it is alive while its control Redis is away, and not ready."""
    return {
        "startupProbe": {**_http("/healthz"), **_startup(startup_seconds)},
        "readinessProbe": {**_http("/readyz"), "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1},
        "livenessProbe": {**_liveness(), **_http("/healthz"), "failureThreshold": 3},
    }


def redis_probes(ping: list[str]) -> dict[str, Any]:
    """Of a Redis server, `ping` being a command of its image, or empty where it has none.

    A port also answers for a server that is stopped or caught in a script: only a command detects that. A server that
    loads its file answers, and is left in peace.
    """
    readiness = {"tcpSocket": {"port": "redis"}, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 2}
    if not ping:
        return {"readinessProbe": readiness}
    return {
        "readinessProbe": readiness,
        "livenessProbe": {**_liveness(), "exec": {"command": ping}, "failureThreshold": 3},
    }


def _startup(seconds: int) -> dict[str, Any]:
    return {"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": max(_START_SECONDS, seconds)}


def _liveness() -> dict[str, Any]:
    return {
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "terminationGracePeriodSeconds": _STOPPED_GRACE_SECONDS,
    }


def _http(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": PROBE_PORT_NAME}}


_MIB = 1 << 20


_CPU = "100m"
"""What every container asks for: on a busy node one that asks for nothing gets nothing, and misses its deadlines."""


COORDINATOR_RESOURCES: dict[str, Any] = {
    "requests": {"cpu": _CPU, "memory": "256Mi"},
    "limits": {"memory": "2Gi"},
}


CONTROL_RESOURCES: dict[str, Any] = {
    "requests": {"cpu": _CPU, "memory": "128Mi"},
    "limits": {"memory": "2Gi"},
}
"""Control state is some hundred bytes a row and the rows of a few rollouts; rewriting its file may double it."""


TRACKER_RESOURCES: dict[str, Any] = {
    "requests": {"cpu": "20m", "memory": "128Mi"},
    "limits": {"memory": "1Gi"},
}
"""Of a process that sleeps nearly always, and must not take from a node what the job needs there."""


_STORAGE_OVERHEAD_BYTES = 256 * _MIB
"""Connections' buffers: a chunk of 4 MiB is in flight for each client."""


_STORAGE_FRAGMENTATION = 4
"""One part in so many of storageBytes may be freed memory that jemalloc keeps."""


ROLE_RESOURCES: dict[str, Any] = {"requests": {"cpu": _CPU}}
"""Memory is reserved only where the user asks for it."""


def storage_resources(storage_bytes: int) -> dict[str, Any]:
    """Of a storage unit: memory for what it may hold, and above that what it needs to hold it."""
    limit = storage_bytes + storage_bytes // _STORAGE_FRAGMENTATION + _STORAGE_OVERHEAD_BYTES
    return {
        "requests": {"cpu": _CPU, "memory": _mebibytes(storage_bytes)},
        "limits": {"memory": _mebibytes(limit)},
    }


def role_given(spec: RoleSpec) -> ResourcesSpec:
    """Resources that a role asks for, its GPUs included unless they are claimed from a class."""
    counted = spec.gpus and spec.device_class is None
    gpus = {spec.gpu_resource: str(spec.gpus)} if counted else {}
    return ResourcesSpec(requests={**spec.resources.requests, **gpus}, limits={**spec.resources.limits, **gpus})


def with_given(usual: dict[str, Any], given: ResourcesSpec) -> dict[str, Any]:
    """`usual` resources of a container with those of the spec over them: an amount in the spec replaces the usual one.

    Where it gives a limit and no request, Kubernetes takes the limit; so a usual request goes, which may be higher. A
    usual limit goes where the spec asks for more.
    """
    unasked = given.limits.keys() - given.requests.keys()
    requests = {name: amount for name, amount in usual.get("requests", {}).items() if name not in unasked}
    limits = {
        name: amount
        for name, amount in usual.get("limits", {}).items()
        if name not in given.requests or not _exceeds(given.requests[name], amount)
    }
    amounts = {"requests": {**requests, **given.requests}, "limits": {**limits, **given.limits}}
    rest = {name: rest_of for name, rest_of in usual.items() if name not in amounts}
    return {**rest, **{name: found for name, found in amounts.items() if found}}


def _exceeds(amount: str, limit: object) -> bool:
    """An administrator's limit is only judged by the API server."""
    try:
        return value(amount) > value(str(limit))
    except ValueError:
        return False


def times(amount: str, factor: int) -> str:
    """An amount as Kubernetes writes it, so many times: 1.5Gi, 4 times, is 6Gi."""
    number = amount.rstrip(string.ascii_letters)
    product = Decimal(number) * factor
    return f"{product.normalize():f}{amount[len(number) :]}" if factor > 1 else amount


def _mebibytes(amount: int) -> str:
    return f"{-(-amount // _MIB)}Mi"


RUN, STATE, TEMPORARY, MEMORY, SECRET, JOB = "run", "state", "tmp", "shm", "secret", "job"
"""Names of the volumes: a template patch may give `run`, `tmp` and `shm` another source or size."""


_GROUP_MAY_READ = 0o440


MEMORY_DIR = str(PurePosixPath(cluster.WEIGHTS_DIR).parent)


JOB_DIR = str(PurePosixPath(cluster.JOB_FILE).parent)


TEMPORARY_DIR = "/tmp"  # noqa: S108 - a volume of the pod's own


def overlap(one: str, other: str) -> bool:
    """Whether one of two paths of a container lies in the other, however they are written."""
    first, second = _place(one), _place(other)
    return first == second or first in second.parents or second in first.parents


def _place(path: str) -> PurePosixPath:
    """As the kubelet reads a mountPath: a relative one begins at the root."""
    return PurePosixPath("/" + normpath("/" + path).lstrip("/"))


def common_volumes(site: Site) -> list[dict[str, Any]]:
    """What workers and coordinator both have, beside the run folder."""
    secret = {"secretName": cluster.secret_name(site.name), "defaultMode": _GROUP_MAY_READ}
    return [
        {"name": STATE, "emptyDir": {}},
        {"name": TEMPORARY, "emptyDir": {}},
        {"name": SECRET, "secret": secret},
        {"name": JOB, "configMap": {"name": cluster.config_name(site.name)}},
    ]


def common_mounts() -> list[dict[str, Any]]:
    """Where they lie, and the run folder."""
    return [
        {"name": RUN, "mountPath": cluster.RUN_DIR},
        {"name": STATE, "mountPath": cluster.STATE_DIR},
        {"name": TEMPORARY, "mountPath": TEMPORARY_DIR},
        {"name": SECRET, "mountPath": cluster.SECRET_DIR, "readOnly": True},
        {"name": JOB, "mountPath": JOB_DIR, "readOnly": True},
    ]


def memory_volume(site: Site, role: Role, spec: RoleSpec) -> dict[str, Any]:
    """The pod's /dev/shm, which holds weights on their way: three versions of the model at most, for all ranks.

    NCCL's processes of one pod, one for each GPU, talk through it, too. Its pages count as the container's memory, so
    the container's limit bounds it; without one, the operator's option for each rank or GPU, or what the weights take
    where that is more: of model.config it is known here, and pods of a model.path refuse too little themselves.
    """
    job = site.job.spec
    size = times(site.workloads.shared_memory, max(job.roles.topology(role).ranks_per_pod, spec.gpus))
    if job.model.config is not None:
        needed = staged_bytes(job, role, num_parameters(job.model))
        size = max(size, _mebibytes(needed), key=value)
    size = spec.resources.limits.get("memory") or size
    return {"name": MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": size}}


def own_run_volume() -> dict[str, Any]:
    """The run folder of a role that keeps nothing: logs and scratch."""
    return {"name": RUN, "emptyDir": {}}


def checkpoint_volume(job: RLJob) -> dict[str, Any]:
    """The run folder of actor, critic and coordinator, by the spec; a template patch of the actor may replace it."""
    claim = job.spec.checkpoint.volume.claim_name or cluster.checkpoint_claim_name(job.metadata.name)
    return {"name": RUN, "persistentVolumeClaim": {"claimName": claim}}
