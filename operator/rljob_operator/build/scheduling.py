"""Where pods run: affinity, tolerations of lost nodes, the fields of `spec.scheduling`, and the PodGroup of a gang.

Actor, critic and coordinator share the run volume, on one node if only one may mount it. The scheduler counts all pods
of a PodGroup, so the group never has more pods than it waits for until the job runs: rollouts beyond the minimum join
only then (`core.scaling`). A pod that is lost later is placed as soon as it fits. Pure.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from rljob_api import cluster
from rljob_api.cluster import LABEL_POD_GROUP, control_name, coordinator_name, deployment_name, storage_name
from rljob_api.cluster_rules import required_replicas
from rljob_api.quantity import value, written
from rljob_api.roles import LEADING_ROLE, TRAITS
from rljob_api.spec import RLJob
from rljob_api.spec.checkpoint import AccessMode
from rljob_api.spec.roles import RoleSpec
from rljob_api.spec.scheduling import TopologyRule
from rljob_api.status import RLJobStatus
from rljob_operator.build.containers import RUN, checkpoint_volume
from rljob_operator.build.parts import (
    TRACKER_PARTS,
    Manifest,
    Part,
    Site,
    infrastructure_replicas,
    manifest,
    role_replicas,
)
from rljob_operator.build.template_patch import patched

LOST_NODE_SECONDS = 30
"""From the taint of a node, which its cluster calls lost after some silence of its own, to another pod in its place.
Kubernetes' own is 300, for which a job of many nodes would stand still. A node that is only slow is not tainted."""


_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


_EFFECT = "NoExecute"


def bounded(tolerations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`tolerations` and one for each way of losing a node, unless they speak of it themselves."""
    missing = [taint for taint in _TAINTS if not any(_speaks_of(taint, toleration) for toleration in tolerations)]
    return [*tolerations, *(_toleration(taint) for taint in missing)]


def _speaks_of(taint: str, toleration: dict[str, Any]) -> bool:
    """As the API server reads it before it adds its own: no key is every key, no effect every effect."""
    return toleration.get("key", "") in ("", taint) and toleration.get("effect", "") in ("", _EFFECT)


def _toleration(taint: str) -> dict[str, Any]:
    return {"key": taint, "operator": "Exists", "effect": _EFFECT, "tolerationSeconds": LOST_NODE_SECONDS}


_STAY = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations for cluster-autoscaler and Karpenter to leave a pod's node. Both would evict the pod from a node that is
little used, as one is whose GPUs alone are: to them that costs nothing, since a Deployment makes another."""


def pod_labels(site: Site, part: Part) -> dict[str, str]:
    """By the label the scheduler knows the pod's gang, which is named as the job is. A tracker's pod is in none."""
    has_none = site.job.spec.scheduling.gang is None or part in TRACKER_PARTS
    return {} if has_none else {LABEL_POD_GROUP: site.name}


def pod_annotations(site: Site, part: Part) -> dict[str, str]:
    """What asks autoscalers of nodes to leave the pod where it is; a tracker's goes on anywhere."""
    stays = site.job.spec.scheduling.refuses_node_removal and part not in TRACKER_PARTS
    return dict(_STAY) if stays else {}


def pod_scheduling(site: Site) -> dict[str, Any]:
    """Fields of a pod's spec."""
    given = site.job.spec.scheduling
    fields = {"schedulerName": given.scheduler_name, "priorityClassName": given.priority_class_name}
    return {name: value for name, value in fields.items() if value is not None}


LABEL_RUN_VOLUME = "rljob.dev/run-volume"
"""On the pods that mount the run volume."""


_HOSTNAME = "kubernetes.io/hostname"


_HEAVIEST = 100
"""Of the weights that a preference may have."""


def run_volume(job: RLJob) -> dict[str, Any]:
    """The run volume of the role that leads, its template patch included: all that have it must mount the same."""
    spec = _leader(job).template.get("spec", {})
    patch = [volume for volume in spec.get("volumes", []) if volume["name"] == RUN]
    volumes = patched({"volumes": [checkpoint_volume(job)]}, {"volumes": patch})["volumes"]
    assert len(volumes) == 1, "template_rules keeps the run volume from being deleted"
    return dict(volumes[0])


def makes_claim(job: RLJob) -> bool:
    """Whether the run volume is the claim that goes with the job. One that the spec names is the user's."""
    if job.spec.checkpoint.volume.claim_name is not None:
        return False
    source = run_volume(job).get("persistentVolumeClaim", {})
    return bool(source.get("claimName") == cluster.checkpoint_claim_name(job.metadata.name))


def shares_node(job: RLJob) -> bool:
    """Whether only one node may mount the run volume."""
    once = job.spec.checkpoint.volume.access_mode is AccessMode.READ_WRITE_ONCE
    return once and "persistentVolumeClaim" in run_volume(job)


def role_placement(site: Site, part: Part) -> dict[str, Any]:
    """In one domain with the other roles' pods, where the spec wants it.

    The role that leads with the pods that have the volume, itself among them: its first pod may go where it likes.
    Others that save follow it, as the coordinator does.
    """
    together = _topology(site)
    if not (has_run_volume(part) and shares_node(site.job)):
        return _affinity(**together)
    if part.role is not LEADING_ROLE:
        return _beside_the_leader(site, together)
    volume = _term({LABEL_RUN_VOLUME: site.name}, _HOSTNAME)
    return _affinity(**{**together, "required": [volume, *together.get("required", [])]})


def coordinator_placement(site: Site) -> dict[str, Any]:
    """With the actor, where the volume binds both to one node."""
    return _beside_the_leader(site, {}) if shares_node(site.job) else {}


def _beside_the_leader(site: Site, together: dict[str, list[Any]]) -> dict[str, Any]:
    """With the actor, whose GPUs choose the node; what the actor tolerates there, the pod tolerates too.

    It waits until the actor has a node. The other way round the pod might sit on a node without a GPU, and the actor
    could go nowhere.
    """
    tolerations = _leader(site.job).template.get("spec", {}).get("tolerations")
    leader = {cluster.LABEL_JOB: site.name, cluster.LABEL_ROLE: LEADING_ROLE.value}
    near = _affinity(**{**together, "required": [_term(leader, _HOSTNAME), *together.get("required", [])]})
    return {**near, **({"tolerations": tolerations} if tolerations else {})}


def has_run_volume(part: Part) -> bool:
    """Whether the part mounts it."""
    saves = part.role is not None and TRAITS[part.role].saves
    return saves or part.component == cluster.COMPONENT_COORDINATOR or part in TRACKER_PARTS


def _leader(job: RLJob) -> RoleSpec:
    return job.spec.roles.present()[LEADING_ROLE]


def _topology(site: Site) -> dict[str, list[Any]]:
    """The pods of all roles, in the spec's domain. Coordinator and Redis compute nothing that a rack would speed up."""
    given = site.job.spec.scheduling.topology
    if given is None:
        return {}
    roles = {cluster.LABEL_JOB: site.name, cluster.LABEL_COMPONENT: cluster.COMPONENT_WORKER}
    term = _term(roles, given.key)
    if given.rule is TopologyRule.REQUIRED:
        return {"required": [term]}
    return {"preferred": [{"weight": _HEAVIEST, "podAffinityTerm": term}]}


def _term(labels: dict[str, str], key: str) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": labels}, "topologyKey": key}


def _affinity(required: list[Any] | None = None, preferred: list[Any] | None = None) -> dict[str, Any]:
    terms = {
        "requiredDuringSchedulingIgnoredDuringExecution": required,
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
    given = {name: found for name, found in terms.items() if found}
    return {"affinity": {"podAffinity": given}} if given else {}


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
        spec["minResources"] = _sum_of_requests(members)
    return [manifest(site, (API_VERSION, KIND), site.name, {"spec": spec})]


def _members(site: Site, status: RLJobStatus, others: Iterable[Manifest]) -> Iterable[tuple[dict[str, Any], int]]:
    """Pod specs, and how many pods of each have to find a place. An ended job's servers may stay without workers.

    Not so while a gang gives back: its pods come again, and the scheduler may see them before it sees a number.
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


def _sum_of_requests(members: Iterable[tuple[dict[str, Any], int]]) -> dict[str, str]:
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
