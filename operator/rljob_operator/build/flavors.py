"""Flavors of a Workload's admission: what they add to the pod templates of a job, set by set. Pure."""

from typing import Any

from rljob_api.roles import LEADING_ROLE
from rljob_api.status import PodSetStatus
from rljob_operator.build.parts import Part, Site, role_part
from rljob_operator.build.scheduling import has_run_volume, shares_node

INFRASTRUCTURE = "infrastructure"
"""The set of all pods that are no role's."""


def pod_set_name(part: Part) -> str:
    """The set that the pods of a part are in."""
    return INFRASTRUCTURE if part.role is None else part.role.value.replace("_", "-")


def placed(site: Site, part: Part, template: dict[str, Any]) -> dict[str, Any]:
    """A pod template with what the flavors of its set add: they win, since the quota is of those nodes."""
    found = _placement(site, part)
    if found is None:
        return template
    metadata, spec = template["metadata"], template["spec"]
    annotations = {**found.annotations, **metadata.get("annotations", {})}
    tolerations = [each.model_dump(exclude_none=True) for each in found.tolerations]
    given = spec.get("tolerations", [])
    return {
        **template,
        "metadata": {
            **metadata,
            "labels": {**found.labels, **metadata["labels"]},
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {
            **spec,
            "nodeSelector": {**spec.get("nodeSelector", {}), **found.node_selector},
            "tolerations": [*given, *(each for each in tolerations if each not in given)],
        },
    }


def _placement(site: Site, part: Part) -> PodSetStatus | None:
    """The placement of its set. Pods that must be beside the actor, for its volume, get the actor's."""
    sets = () if site.queue is None else site.queue.pod_sets
    follows = has_run_volume(part) and shares_node(site.job)
    name = pod_set_name(role_part(LEADING_ROLE) if follows else part)
    return next((each for each in sets if each.name == name), None)
