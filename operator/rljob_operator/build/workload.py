"""Kueue's Workload of a job with a queue: what all of its pods ask for, by sets.

A Workload has at most eight sets. Each role is one; coordinator, Redis and trackers, of which each has a template of
its own, share one, `infrastructure`, with the mean of what they ask for: their number and their sum are right, and the
bounds of a LimitRange, which Kueue checks for each set, hold for a mean where they hold for each. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any

from rljob_api import cluster
from rljob_api.names import Role
from rljob_api.quantity import value, written
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_operator.build.deployments import coordinator, role_deployment
from rljob_operator.build.flavors import INFRASTRUCTURE, pod_set_name
from rljob_operator.build.parts import Manifest, Owner, Site, digest, job_labels, owner_reference, role_part, trackers
from rljob_operator.build.redis import control, storage
from rljob_operator.build.trackers import tracker_deployment
from rljob_operator.options import OperatorOptions

API_VERSION = "kueue.x-k8s.io/v1beta2"


KIND = "Workload"


_FOR_FLAVORS = ("nodeSelector", "tolerations", "runtimeClassName")
"""Beside the requests and the affinity to nodes, what Kueue looks at in a pod: image, environment and volumes stay out
of an object that others may read."""


_LEAST = {"cpu": Decimal("0.001")}
"""Steps in which a mean is rounded up; of other resources it is one."""


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """The queue that a job names, and its priority there."""

    queue: str
    workload_class: str = ""
    """Its WorkloadPriorityClass, by the label; "" where it has none."""
    pod_class: str = ""
    """The PriorityClass of its pods, which counts where there is no WorkloadPriorityClass."""

    @property
    def priority(self) -> tuple[str, str]:
        """Kind and name of the class that counts; empty without one."""
        if self.workload_class:
            return "WorkloadPriorityClass", self.workload_class
        return ("PriorityClass", self.pod_class) if self.pod_class else ("", "")


def workload(job: RLJob, owner: Owner, options: OperatorOptions, queue: str) -> Manifest:
    """The Workload, without its priority, whose number only the cluster knows."""
    site = Site.of(job, owner, options)
    sets = _pod_sets(site)
    requests = digest([{**each, "count": 0} for each in sets])
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": cluster.workload_name(site.name),
            "namespace": owner.namespace,
            "labels": job_labels(site),
            "annotations": {cluster.ANNOTATION_BUILT_FOR: site.revision, cluster.ANNOTATION_REQUESTS: requests},
            "ownerReferences": [owner_reference(site)],
        },
        "spec": {"queueName": queue, "podSets": sets},
    }


def _pod_sets(site: Site) -> list[dict[str, Any]]:
    status, spec = RLJobStatus(), site.job.spec
    most = spec.roles.most_replicas()
    sets = [_of_role(site, status, role, most[role]) for role in spec.roles.present()]
    units = spec.transfer_queue.storage_units
    others = [(coordinator(site, status), 1), (control(site, status), 1), (storage(site, status), units)]
    others += [(tracker_deployment(site, status, tracker), 1) for tracker in trackers(site.job)]
    return [*sets, _shared([(_pod(made), count) for made, count in others])]


def _of_role(site: Site, status: RLJobStatus, role: Role, count: int) -> dict[str, Any]:
    pod = _pod(role_deployment(site, status, role, site.job.spec.roles.present()[role]))
    return {"name": pod_set_name(role_part(role)), "count": count, "template": {"spec": _trimmed(pod)}}


def _pod(made: Manifest) -> dict[str, Any]:
    pod: dict[str, Any] = made["spec"]["template"]["spec"]
    return pod


def _trimmed(pod: Mapping[str, Any]) -> dict[str, Any]:
    retained = {name: pod[name] for name in _FOR_FLAVORS if pod.get(name)}
    nodes = (pod.get("affinity") or {}).get("nodeAffinity")
    return {
        **retained,
        **({"affinity": {"nodeAffinity": nodes}} if nodes else {}),
        **{name: [_asking(each) for each in pod[name]] for name in ("initContainers", "containers") if pod.get(name)},
    }


def _asking(container: Mapping[str, Any]) -> dict[str, Any]:
    return {name: container[name] for name in ("name", "restartPolicy", "resources") if container.get(name)}


def _shared(pods: list[tuple[dict[str, Any], int]]) -> dict[str, Any]:
    """One set of pods that each ask for the mean; where they may run is what the first says."""
    count = sum(number for _, number in pods)
    total: dict[str, Decimal] = {}
    for pod, number in pods:
        for name, amount in _requests(pod).items():
            total[name] = total.get(name, Decimal(0)) + amount * number
    means = {name: written(_mean(name, amount, count)) for name, amount in sorted(total.items()) if amount}
    first = _trimmed(pods[0][0])
    container = {"name": INFRASTRUCTURE, **({"resources": {"requests": means}} if means else {})}
    spec = {name: first[name] for name in first if name not in ("containers", "initContainers")}
    return {"name": INFRASTRUCTURE, "count": count, "template": {"spec": {**spec, "containers": [container]}}}


def _mean(resource: str, total: Decimal, count: int) -> Decimal:
    step = _LEAST.get(resource, Decimal(1))
    return (total / count / step).to_integral_value(ROUND_CEILING) * step


def _requests(pod: Mapping[str, Any]) -> dict[str, Decimal]:
    """Requests of a pod while it runs, its sidecars among it. A limit without a request is one."""
    sidecars = [each for each in pod.get("initContainers", ()) if each.get("restartPolicy") == "Always"]
    total: dict[str, Decimal] = {}
    for container in (*pod["containers"], *sidecars):
        resources = container.get("resources", {})
        for name, amount in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            total[name] = total.get(name, Decimal(0)) + value(amount)
    return total
