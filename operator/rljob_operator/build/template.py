"""A pod template: what all pods share, the part's own, the operator's patch, the job's patch, and a digest."""

from typing import Any

from rljob_api import cluster
from rljob_operator.build.digests import digest
from rljob_operator.build.lost_nodes import bounded
from rljob_operator.build.metadata import part_labels
from rljob_operator.build.parts import CONTAINERS, Part, Site
from rljob_operator.build.placement import LABEL_RUN_VOLUME, has_run_volume
from rljob_operator.build.scheduling import pod_annotations, pod_labels, pod_scheduling
from rljob_operator.build.security import pod_security
from rljob_operator.build.template_patch import patched


def pod_template(site: Site, part: Part, spec: dict[str, Any], patch: dict[str, Any] | None = None) -> dict[str, Any]:
    """The template of a part's pods, a role's with the role's patch.

    Nothing in it changes while the job lives, unless its pods are to be replaced.
    """
    volume = {LABEL_RUN_VOLUME: site.name} if has_run_volume(part) else {}
    annotated = pod_annotations(site)
    template = {
        "metadata": {
            "labels": {**part_labels(site, part), **volume, **pod_labels(site)},
            **({"annotations": annotated} if annotated else {}),
        },
        "spec": {**_shared(site), **pod_scheduling(site), **spec},
    }
    template = patched(template, _for_part(site.workloads.pod_template, part))
    own = _for_part(site.job.spec.infrastructure.template, part) if part.role is None else patch
    template = patched(template, own or {})
    template["spec"] = {**template["spec"], "tolerations": bounded(template["spec"].get("tolerations", []))}
    annotations = template["metadata"].get("annotations", {})
    named = {"annotations": {**annotations, cluster.ANNOTATION_TEMPLATE: digest(template)}}
    return {**template, "metadata": {**template["metadata"], **named}}


def _shared(site: Site) -> dict[str, Any]:
    pulls = [{"name": name} for name in site.workloads.pull_secrets]
    return {**pod_security(), **({"imagePullSecrets": pulls} if pulls else {})}


def _for_part(patch: dict[str, Any], part: Part) -> dict[str, Any]:
    """A patch of several parts' pods as it concerns one: without the containers of the others."""
    spec = patch.get("spec", {})
    if "containers" not in spec:
        return patch
    others = {name for name in CONTAINERS if name != part.container}
    kept = [container for container in spec["containers"] if container["name"] not in others]
    return {**patch, "spec": {**spec, "containers": kept}}
