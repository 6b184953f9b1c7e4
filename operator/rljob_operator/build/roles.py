"""The Deployment of a role: a launcher per pod.

Deployments: the pods of a role are alike; the coordinator tells a pod its number, and a number outlives its pod.
"""

from typing import Any

from rljob_api import cluster
from rljob_api.names import Role
from rljob_api.role_traits import TRAITS
from rljob_api.spec import RoleSpec
from rljob_api.status import RLJobStatus
from rljob_operator.build.metadata import manifest, selector
from rljob_operator.build.parts import WORKER_CONTAINER, Manifest, Part, Site
from rljob_operator.build.placement import role_placement
from rljob_operator.build.probes import LAST_WORDS, worker_probes
from rljob_operator.build.resources import ROLE, role_given
from rljob_operator.build.scale import role_replicas
from rljob_operator.build.security import container_security
from rljob_operator.build.template import Given, pod_template
from rljob_operator.build.volumes import (
    MEMORY,
    MEMORY_DIR,
    TEMPORARY_DIR,
    checkpoint_volume,
    common_mounts,
    common_volumes,
    memory_volume,
    own_run_volume,
)

NO_DEADLINE = 2**31 - 1
"""Kubernetes' word for none: waiting for GPUs is no failure of a Deployment."""


def role_part(role: Role) -> Part:
    """The pods of a role."""
    return Part(cluster.COMPONENT_WORKER, WORKER_CONTAINER, role)


def role_deployment(site: Site, status: RLJobStatus, role: Role, spec: RoleSpec) -> Manifest:
    """The Deployment. All of its pods are replaced at once: a new template is a new epoch anyhow."""
    part = role_part(role)
    body = {
        "replicas": role_replicas(site, status, role),
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": NO_DEADLINE,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}},
        "selector": {"matchLabels": selector(site, part)},
        "template": pod_template(site, part, _pod(site, role, spec), _given(site, spec), spec.template),
    }
    return manifest(site, ("apps/v1", "Deployment"), cluster.deployment_name(site.name, role), {"spec": body}, part)


def _pod(site: Site, role: Role, spec: RoleSpec) -> dict[str, Any]:
    saves = TRAITS[role].saves
    run = checkpoint_volume(site) if saves else own_run_volume()
    return {
        # No preStop hook: SIGTERM goes to the launcher, which drains, and no Service has to forget the pod before.
        "terminationGracePeriodSeconds": site.workloads.termination_grace_seconds,
        "containers": [_container(site, role)],
        "volumes": [run, *common_volumes(site), memory_volume(site, role, spec)],
        **role_placement(site, role_part(role)),
    }


def _given(site: Site, spec: RoleSpec) -> Given:
    return Given(role_given(spec), site.job.spec.image)


def _container(site: Site, role: Role) -> dict[str, Any]:
    return {
        "name": WORKER_CONTAINER,
        "image": site.workloads.worker_image,
        "imagePullPolicy": site.workloads.pull_policy.value,
        "command": [site.workloads.python, "-m", "rljob_workers.launcher.pod"],
        "env": [*pod_identity(site), {"name": "RLJOB_ROLE", "value": role.value}],
        "ports": [{"name": "http", "containerPort": cluster.PROBE_PORT}],
        "resources": ROLE,
        "volumeMounts": [*common_mounts(), {"name": MEMORY, "mountPath": MEMORY_DIR}],
        "terminationMessagePolicy": LAST_WORDS,
        **worker_probes(site.job.spec.roles.rollout.engine.startup_seconds),
        **container_security(),
    }


def pod_identity(site: Site) -> list[dict[str, Any]]:
    """What a pod of a job is told of itself; nothing of it changes while the job lives."""
    return [
        {"name": "RLJOB_NAME", "value": site.name},
        {"name": "RLJOB_NAMESPACE", "value": site.owner.namespace},
        {"name": "RLJOB_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "RLJOB_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        # Libraries keep caches at home, and the image's own home is read-only.
        {"name": "HOME", "value": TEMPORARY_DIR},
    ]
