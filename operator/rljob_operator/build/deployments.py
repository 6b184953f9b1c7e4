"""The Deployments: one per role with a launcher in each pod, and one for the coordinator.

Pods of a role are alike; the coordinator gives each a number, which outlives its pod. The coordinator's strategy is
Recreate, because two at a time would both open epochs; its state is in the control Redis. Pure.
"""

from typing import Any

from rljob_api import cluster
from rljob_api.names import Role
from rljob_api.roles import TRAITS
from rljob_api.spec.roles import RoleSpec
from rljob_api.status import RLJobStatus
from rljob_operator.build.containers import (
    COORDINATOR_RESOURCES,
    MEMORY,
    MEMORY_DIR,
    METRICS_PORT_NAME,
    PROBE_PORT_NAME,
    ROLE_RESOURCES,
    TEMPORARY_DIR,
    TERMINATION_MESSAGE,
    checkpoint_volume,
    common_mounts,
    common_volumes,
    container_security,
    coordinator_probes,
    memory_volume,
    own_run_volume,
    role_given,
    worker_probes,
)
from rljob_operator.build.device_claims import container_claims, pod_claims
from rljob_operator.build.parts import (
    COORDINATOR_CONTAINER,
    COORDINATOR_PART,
    WORKER_CONTAINER,
    Manifest,
    Site,
    infrastructure_replicas,
    manifest,
    role_part,
    role_replicas,
    selector,
)
from rljob_operator.build.scheduling import coordinator_placement, role_placement, run_volume
from rljob_operator.build.template import pod_template

NO_DEADLINE = 2**31 - 1
"""The largest that Kubernetes takes: waiting for GPUs is no failure of a Deployment."""


_METRICS = {"name": METRICS_PORT_NAME, "containerPort": cluster.METRICS_PORT}


_PROBES = {"name": PROBE_PORT_NAME, "containerPort": cluster.PROBE_PORT}


def role_deployment(site: Site, status: RLJobStatus, role: Role, spec: RoleSpec) -> Manifest:
    """The Deployment. All of its pods are replaced at once: a new template is a new epoch anyhow."""
    part = role_part(role)
    body = {
        "replicas": role_replicas(site, status, role),
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": NO_DEADLINE,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}},
        "selector": {"matchLabels": selector(site, part)},
        "template": pod_template(
            site, part, _role_pod(site, role, spec), role_given(spec), site.job.spec.image, spec.template
        ),
    }
    return manifest(site, ("apps/v1", "Deployment"), cluster.deployment_name(site.name, role), {"spec": body}, part)


def _role_pod(site: Site, role: Role, spec: RoleSpec) -> dict[str, Any]:
    traits = TRAITS[role]
    # The leading role's own patch makes of it what the others mount.
    shared = checkpoint_volume(site.job) if traits.leads else run_volume(site.job)
    run = shared if traits.saves else own_run_volume()
    return {
        # No preStop hook: SIGTERM goes to the launcher, which drains, and no Service has to forget the pod before.
        "terminationGracePeriodSeconds": site.workloads.termination_grace_seconds,
        "containers": [_role_container(site, role, spec)],
        "volumes": [run, *common_volumes(site), memory_volume(site, role, spec)],
        **pod_claims(site, role, spec),
        **role_placement(site, role_part(role)),
    }


def _role_container(site: Site, role: Role, spec: RoleSpec) -> dict[str, Any]:
    return {
        "name": WORKER_CONTAINER,
        "image": site.workloads.worker_image,
        "imagePullPolicy": site.workloads.pull_policy.value,
        "command": [site.workloads.python, "-m", "rljob_workers.launcher.pod"],
        "env": [*pod_identity(site), {"name": "RLJOB_ROLE", "value": role.value}],
        "ports": [_METRICS, _PROBES],
        "resources": {**ROLE_RESOURCES, **container_claims(spec)},
        "volumeMounts": [*common_mounts(), {"name": MEMORY, "mountPath": MEMORY_DIR}],
        "terminationMessagePolicy": TERMINATION_MESSAGE,
        **worker_probes(site.job.spec.roles.rollout.engine.startup_seconds),
        **container_security(),
    }


def pod_identity(site: Site) -> list[dict[str, Any]]:
    """The identity of a pod, in its environment; nothing of it changes while the job lives."""
    return [
        {"name": "RLJOB_NAME", "value": site.name},
        {"name": "RLJOB_NAMESPACE", "value": site.owner.namespace},
        {"name": "RLJOB_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "RLJOB_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        # Libraries keep caches at home, and the image's own home is read-only.
        {"name": "HOME", "value": TEMPORARY_DIR},
    ]


_COORDINATOR_GRACE_SECONDS = 10


def coordinator(site: Site, status: RLJobStatus) -> Manifest:
    """The Deployment."""
    resources = site.job.spec.infrastructure.coordinator.resources
    body = {
        "replicas": infrastructure_replicas(site, status, 1),
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": NO_DEADLINE,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector(site, COORDINATOR_PART)},
        "template": pod_template(site, COORDINATOR_PART, _coordinator_pod(site), resources, site.job.spec.image),
    }
    name = cluster.coordinator_name(site.name)
    return manifest(site, ("apps/v1", "Deployment"), name, {"spec": body}, COORDINATOR_PART)


def _coordinator_pod(site: Site) -> dict[str, Any]:
    return {
        "terminationGracePeriodSeconds": _COORDINATOR_GRACE_SECONDS,
        "containers": [_coordinator_container(site)],
        "volumes": [run_volume(site.job), *common_volumes(site)],
        **coordinator_placement(site),
    }


def _coordinator_container(site: Site) -> dict[str, Any]:
    return {
        "name": COORDINATOR_CONTAINER,
        "image": site.workloads.worker_image,
        "imagePullPolicy": site.workloads.pull_policy.value,
        "command": [site.workloads.python, "-m", "rljob_workers.dcs.coordinator.pod"],
        "env": pod_identity(site),
        "ports": [{"name": "http", "containerPort": cluster.COORDINATOR_PORT}, _METRICS, _PROBES],
        "resources": COORDINATOR_RESOURCES,
        "volumeMounts": common_mounts(),
        "terminationMessagePolicy": TERMINATION_MESSAGE,
        **coordinator_probes(site.job.spec.roles.rollout.engine.startup_seconds),
        **container_security(),
    }
