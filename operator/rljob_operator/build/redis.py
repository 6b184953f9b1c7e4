"""The Redis servers: the control Redis and the storage units.

StatefulSets, because a name has at most one pod: never two servers on one append-only file, and a unit's Service
always means the same unit. A Deployment may have an old and a new pod at a time. They start in no order.

The claim of the control Redis is an object of the job. One that a StatefulSet's controller makes while the job is being
deleted has no owner yet, and stays.
"""

from enum import Enum
from typing import Any

from rljob_api import cluster
from rljob_api.spec import RLJob
from rljob_api.spec.infrastructure import ResourcesSpec
from rljob_api.spec.queue import PersistenceKind
from rljob_api.status import RLJobStatus
from rljob_operator.build.containers import (
    CONTROL_RESOURCES,
    TERMINATION_MESSAGE,
    container_security,
    redis_probes,
    storage_resources,
)
from rljob_operator.build.mounted_objects import PASSWORD_KEY
from rljob_operator.build.parts import (
    CONTROL_PART,
    REDIS_CONTAINER,
    STORAGE_PART,
    Manifest,
    Part,
    Site,
    infrastructure_replicas,
    manifest,
    part_labels,
    selector,
)
from rljob_operator.build.template import pod_template

_DATA = "data"
_CONTROL_STATE = "control-state"
"""Volume of the control Redis; a patch of `data` is for the storage units."""
_DATA_DIR = "/data"
_GRACE_SECONDS = 10
_PASSWORD = "REDISCLI_AUTH"  # noqa: S105 - a variable, which redis-cli reads too
_STORAGE_MALLOC = "oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1"
"""jemalloc keeps freed pages: giving megabytes back to the kernel and faulting them in again costs more than a copy."""
_MALLOC_VARIABLES = ("MALLOC_CONF", "JE_MALLOC_CONF")
"""A system's jemalloc reads the first, the one that Redis brings along (it has a prefix) the second."""
_CONTROL_ARGUMENTS = ("--appendonly", "yes", "--appendfsync", "everysec", "--aof-load-truncated", "yes")


class ClaimedBy(Enum):
    """Maker of the claim of the control Redis."""

    JOB = "job"
    """The operator: it goes with the job, whenever it was made."""
    SET = "set"
    """The controller of a StatefulSet of release 0.2.0 or before. The claims of a set that is there cannot change."""


def control(site: Site, status: RLJobStatus, claimed_by: ClaimedBy = ClaimedBy.JOB) -> Manifest:
    """The control Redis: synced every second, a torn tail cut off at the start."""
    is_of_set = _is_claimed(site.job) and claimed_by is ClaimedBy.SET
    volume = _control_volume(site)
    pod = _pod(site, _CONTROL_ARGUMENTS, [], CONTROL_RESOURCES, {"name": _DATA} if is_of_set else volume)
    template = _template(site, CONTROL_PART, pod, site.job.spec.infrastructure.control.resources)
    replicas = infrastructure_replicas(site, status, 1)
    body = _stateful(site, CONTROL_PART, replicas, cluster.control_name(site.name), template)
    return _set(site, CONTROL_PART, {**body, **(_claims(site) if is_of_set else {})})


def control_claims(site: Site, claimed_by: ClaimedBy) -> list[Manifest]:
    """The claim of the control Redis, where the job is to have one of its own."""
    if not _is_claimed(site.job) or claimed_by is ClaimedBy.SET:
        return []
    name, body = cluster.control_claim_name(site.name), {"spec": _claim_spec(site)}
    return [manifest(site, ("v1", "PersistentVolumeClaim"), name, body, CONTROL_PART)]


def _is_claimed(job: RLJob) -> bool:
    return job.spec.transfer_queue.redis.persistence.kind is PersistenceKind.CLAIM


def _control_volume(site: Site) -> dict[str, Any]:
    if not _is_claimed(site.job):
        return _scratch()
    return {
        "name": _CONTROL_STATE,
        "persistentVolumeClaim": {"claimName": cluster.control_claim_name(site.name)},
    }


def storage(site: Site, status: RLJobStatus) -> Manifest:
    """The storage units: nothing on disk, at most storageBytes in memory, no eviction."""
    queue = site.job.spec.transfer_queue
    arguments = ("--appendonly", "no", "--maxmemory", str(queue.storage_bytes))
    malloc = [{"name": name, "value": _STORAGE_MALLOC} for name in _MALLOC_VARIABLES]
    pod = _pod(site, arguments, malloc, storage_resources(queue.storage_bytes), _scratch())
    template = _template(site, STORAGE_PART, pod, queue.redis.resources)
    replicas = infrastructure_replicas(site, status, queue.storage_units)
    body = _stateful(site, STORAGE_PART, replicas, cluster.storage_name(site.name), template)
    return _set(site, STORAGE_PART, body)


def _set(site: Site, part: Part, spec: dict[str, Any]) -> Manifest:
    return manifest(site, ("apps/v1", "StatefulSet"), spec["serviceName"], {"spec": spec}, part)


def _template(site: Site, part: Part, pod: dict[str, Any], resources: ResourcesSpec) -> dict[str, Any]:
    return pod_template(site, part, pod, resources, site.job.spec.transfer_queue.redis.image)


def _stateful(site: Site, part: Part, replicas: int, service: str, template: dict[str, Any]) -> dict[str, Any]:
    return {
        "replicas": replicas,
        "serviceName": service,
        "revisionHistoryLimit": 1,
        # Not in order: the default would also wait for ever for a pod that a bad template keeps from being ready.
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": selector(site, part)},
        "template": template,
    }


def _claim_spec(site: Site) -> dict[str, Any]:
    persistence = site.job.spec.transfer_queue.redis.persistence
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": persistence.size}},
    }
    if persistence.storage_class_name is not None:
        spec["storageClassName"] = persistence.storage_class_name
    return spec


def _claims(site: Site) -> dict[str, Any]:
    labels = part_labels(site, CONTROL_PART)
    template = {"metadata": {"name": _DATA, "labels": labels}, "spec": _claim_spec(site)}
    return {
        # Deleted with the job; retained over a suspension, which scales to zero.
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
        "volumeClaimTemplates": [template],
    }


def _scratch() -> dict[str, Any]:
    return {"name": _DATA, "emptyDir": {}}


def _pod(
    site: Site,
    arguments: tuple[str, ...],
    environment: list[dict[str, Any]],
    resources: dict[str, Any],
    volume: dict[str, Any],
) -> dict[str, Any]:
    """`volume` has the data; one that is nothing but a name is the set's."""
    password = {"secretKeyRef": {"name": cluster.secret_name(site.name), "key": PASSWORD_KEY}}
    container = {
        "name": REDIS_CONTAINER,
        "image": site.workloads.redis_image,
        "imagePullPolicy": site.workloads.pull_policy.value,
        "command": [site.workloads.redis_server],
        "args": [*_arguments(), *arguments],
        "env": [{"name": _PASSWORD, "valueFrom": password}, *environment],
        "ports": [{"name": "redis", "containerPort": cluster.REDIS_PORT}],
        "resources": resources,
        "volumeMounts": [{"name": volume["name"], "mountPath": _DATA_DIR}],
        "terminationMessagePolicy": TERMINATION_MESSAGE,
        **redis_probes(site.workloads.redis_ping),
        **container_security(),
    }
    return {
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "containers": [container],
        **({"volumes": [volume]} if volume.keys() != {"name"} else {}),
    }


def _arguments() -> list[str]:
    return [
        *("--port", str(cluster.REDIS_PORT), "--bind", "*", "-::*"),
        # The kubelet fills it in; the server rewrites its own argument list when it is up, so that it does not stay.
        *("--requirepass", f"$({_PASSWORD})", "--dir", _DATA_DIR, "--daemonize", "no"),
        *("--save", "", "--maxmemory-policy", "noeviction"),
    ]
