"""The PodGroup of a gang (scheduler-plugins): how many pods of the job there has to be room for before one is placed.

The scheduler counts pods, whoever they are, so the group never has more pods than it waits for until the job runs:
rollouts beyond the minimum join only then (`core.scaling`). A pod that is lost later is placed as soon as it fits,
since the others are placed already.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from rljob_api.cluster import control_name, coordinator_name, deployment_name, storage_name
from rljob_api.gang import required_replicas
from rljob_api.quantity import value, written
from rljob_api.status import RLJobStatus
from rljob_operator.build.metadata import manifest
from rljob_operator.build.parts import Manifest, Site
from rljob_operator.build.scale import infrastructure_replicas, role_replicas

API_VERSION = "scheduling.x-k8s.io/v1alpha1"
KIND = "PodGroup"
MISSING_API = (
    f"spec.scheduling.gang: PodGroup needs the API {API_VERSION}, which this cluster does not have. Install "
    "scheduler-plugins (its CRDs, its controller and a scheduler with the plugin Coscheduling), or remove the field."
)


def pod_group(site: Site, status: RLJobStatus, others: Iterable[Manifest]) -> list[Manifest]:
    """The group of the pods that `others` make, as many as are wanted now; none where no gang is, or no pod."""
    if site.job.spec.scheduling.gang is None:
        return []
    members = list(_members(site, status, others))
    count = sum(replicas for _, replicas in members)
    if not count:
        return []
    spec: dict[str, Any] = {"minMember": count}
    # The plugin compares it with what is free now, and tries no preemption where that is too little: without it nodes
    # are tried one by one, and pods of a higher priority make room for themselves.
    if site.job.spec.scheduling.priority_class_name is None:
        spec["minResources"] = _sum(members)
    return [manifest(site, (API_VERSION, KIND), site.name, {"spec": spec})]


def _members(site: Site, status: RLJobStatus, others: Iterable[Manifest]) -> Iterable[tuple[dict[str, Any], int]]:
    """Pod specs, and how many pods of each have to find a place. An ended job's servers may stay without workers.

    Not so while a gang gives back: its pods come again, and the scheduler may hear of them before it hears of a number.
    """
    whole = status.model_copy(update={"restart": status.restart.model_copy(update={"releasing": False})})
    templates = {
        made["metadata"]["name"]: made["spec"]["template"]["spec"]
        for made in others
        if made["kind"] in ("Deployment", "StatefulSet")
    }
    units = site.job.spec.transfer_queue.storage_units
    for name, replicas in ((coordinator_name(site.name), 1), (control_name(site.name), 1)):
        yield templates[name], infrastructure_replicas(site, status, replicas)
    yield templates[storage_name(site.name)], infrastructure_replicas(site, status, units)
    for role, required in required_replicas(site.job.spec).items():
        yield templates[deployment_name(site.name, role)], min(required, role_replicas(site, whole, role))


def _sum(members: Iterable[tuple[dict[str, Any], int]]) -> dict[str, str]:
    """What all of them ask for together."""
    total: dict[str, Decimal] = {}
    for spec, replicas in members:
        for name, amount in _requests(spec).items():
            total[name] = total.get(name, Decimal(0)) + amount * replicas
    return {name: written(amount) for name, amount in sorted(total.items()) if amount}


def _requests(spec: Mapping[str, Any]) -> dict[str, Decimal]:
    """What a pod asks for: its containers run side by side. A limit without a request is one."""
    total: dict[str, Decimal] = {}
    for container in spec["containers"]:
        resources = container.get("resources", {})
        for name, amount in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            total[name] = total.get(name, Decimal(0)) + value(amount)
    return total
