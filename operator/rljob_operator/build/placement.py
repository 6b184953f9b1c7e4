"""Where pods run beside each other.

All roles in one domain of nodes where the spec wants that; actor and coordinator, which share the run volume, on one
node where only one may mount it.
"""

from typing import Any

from rljob_api import cluster
from rljob_api.role_traits import LEADING_ROLE, TRAITS
from rljob_api.scheduling import TopologyRule
from rljob_api.spec import AccessMode, RoleSpec
from rljob_operator.build.parts import Part, Site
from rljob_operator.build.template_patch import patched
from rljob_operator.build.volumes import RUN, checkpoint_volume

LABEL_RUN_VOLUME = "rljob.dev/run-volume"
"""On the pods that mount the run volume."""
_HOSTNAME = "kubernetes.io/hostname"
_HEAVIEST = 100
"""Of the weights that a preference may have."""


def run_volume(site: Site) -> dict[str, Any]:
    """The run volume of the role that leads, its template patch included: the coordinator must mount the same."""
    spec = _leader(site).template.get("spec", {})
    patch = [volume for volume in spec.get("volumes", []) if volume["name"] == RUN]
    volumes = patched({"volumes": [checkpoint_volume(site)]}, {"volumes": patch})["volumes"]
    assert len(volumes) == 1, "template_rules keeps the run volume from being deleted"
    return dict(volumes[0])


def makes_claim(site: Site) -> bool:
    """Whether the run volume is the claim that goes with the job. One that the spec names is the user's."""
    if site.job.spec.checkpoint.volume.claim_name is not None:
        return False
    source = run_volume(site).get("persistentVolumeClaim", {})
    return bool(source.get("claimName") == cluster.checkpoint_claim_name(site.name))


def shares_node(site: Site) -> bool:
    """Whether only one node may mount the run volume."""
    once = site.job.spec.checkpoint.volume.access_mode is AccessMode.READ_WRITE_ONCE
    return once and "persistentVolumeClaim" in run_volume(site)


def role_placement(site: Site, part: Part) -> dict[str, Any]:
    """In one domain with the other roles' pods, where the spec wants it.

    Those that save with the pods that have the volume, itself among them: the first pod of all may go where it likes.
    """
    together = _topology(site)
    if not (has_run_volume(part) and shares_node(site)):
        return _affinity(**together)
    volume = _term({LABEL_RUN_VOLUME: site.name}, _HOSTNAME)
    return _affinity(**{**together, "required": [volume, *together.get("required", [])]})


def coordinator_placement(site: Site) -> dict[str, Any]:
    """With the actor, whose GPUs choose the node; what the actor tolerates there, the coordinator tolerates too.

    It waits until the actor has a node. The other way round the coordinator might sit on a node without a GPU, and the
    actor could go nowhere.
    """
    if not shares_node(site):
        return {}
    tolerations = _leader(site).template.get("spec", {}).get("tolerations")
    leader = {cluster.LABEL_JOB: site.name, cluster.LABEL_ROLE: LEADING_ROLE.value}
    near = _affinity(required=[_term(leader, _HOSTNAME)])
    return {**near, **({"tolerations": tolerations} if tolerations else {})}


def has_run_volume(part: Part) -> bool:
    """Whether the part mounts it."""
    saves = part.role is not None and TRAITS[part.role].saves
    return saves or part.component == cluster.COMPONENT_COORDINATOR


def _leader(site: Site) -> RoleSpec:
    return site.job.spec.roles.present()[LEADING_ROLE]


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
