"""The coordinator: a Deployment of one. Its state is in the control Redis, so that any pod of it goes on.

Recreate, because two at a time would both open epochs.
"""

from typing import Any

from rljob_api import cluster
from rljob_api.status import RLJobStatus
from rljob_operator.build.metadata import manifest, selector
from rljob_operator.build.parts import COORDINATOR_CONTAINER, Manifest, Part, Site
from rljob_operator.build.placement import coordinator_placement, run_volume
from rljob_operator.build.probes import LAST_WORDS, coordinator_probes
from rljob_operator.build.resources import COORDINATOR
from rljob_operator.build.roles import NO_DEADLINE, pod_identity
from rljob_operator.build.scale import infrastructure_replicas
from rljob_operator.build.security import container_security
from rljob_operator.build.template import Given, pod_template
from rljob_operator.build.volumes import common_mounts, common_volumes

PART = Part(cluster.COMPONENT_COORDINATOR, COORDINATOR_CONTAINER)
_GRACE_SECONDS = 10


def coordinator(site: Site, status: RLJobStatus) -> Manifest:
    """The Deployment."""
    body = {
        "replicas": infrastructure_replicas(site, status, 1),
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": NO_DEADLINE,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector(site, PART)},
        "template": pod_template(site, PART, _pod(site), _given(site)),
    }
    return manifest(site, ("apps/v1", "Deployment"), cluster.coordinator_name(site.name), {"spec": body}, PART)


def _pod(site: Site) -> dict[str, Any]:
    return {
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "containers": [_container(site)],
        "volumes": [run_volume(site), *common_volumes(site)],
        **coordinator_placement(site),
    }


def _given(site: Site) -> Given:
    spec = site.job.spec
    return Given(spec.infrastructure.coordinator.resources, spec.image)


def _container(site: Site) -> dict[str, Any]:
    return {
        "name": COORDINATOR_CONTAINER,
        "image": site.workloads.worker_image,
        "imagePullPolicy": site.workloads.pull_policy.value,
        "command": [site.workloads.python, "-m", "rljob_workers.dcs.coordinator.pod"],
        "env": pod_identity(site),
        "ports": [{"name": "http", "containerPort": cluster.COORDINATOR_PORT}],
        "resources": COORDINATOR,
        "volumeMounts": common_mounts(),
        "terminationMessagePolicy": LAST_WORDS,
        **coordinator_probes(site.job.spec.roles.rollout.engine.startup_seconds),
        **container_security(),
    }
