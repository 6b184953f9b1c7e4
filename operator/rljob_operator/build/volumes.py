"""Volumes of worker and coordinator pods."""

from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

from rljob_api import cluster
from rljob_api.names import Role
from rljob_api.spec import RoleSpec
from rljob_api.topology import topology_of
from rljob_operator.build.parts import Site
from rljob_operator.build.resources import times

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
    """The pod's /dev/shm, which holds weights on their way: two versions of the model at most, in each rank.

    NCCL's processes of one pod, one for each GPU, talk through it, too. Its pages count as the container's memory, so
    the container's limit bounds it; without one, the operator's option for each rank or GPU.
    """
    num_processes = max(topology_of(site.job.spec.roles, role).ranks_per_pod, spec.gpus)
    size = spec.resources.limits.get("memory") or times(site.workloads.shared_memory, num_processes)
    return {"name": MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": size}}


def own_run_volume() -> dict[str, Any]:
    """The run folder of a role that keeps nothing: logs and scratch."""
    return {"name": RUN, "emptyDir": {}}


def checkpoint_volume(site: Site) -> dict[str, Any]:
    """The run folder of actor and coordinator, as the spec says; a template patch of the actor may say otherwise."""
    given = site.job.spec.checkpoint.volume.claim_name
    claim = given or cluster.checkpoint_claim_name(site.name)
    return {"name": RUN, "persistentVolumeClaim": {"claimName": claim}}
