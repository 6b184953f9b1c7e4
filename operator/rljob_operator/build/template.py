"""A pod template: what all pods share, the part's own, the administrator's patch, the job's fields, and a digest."""

from typing import Any

from rljob_api import cluster
from rljob_api.roles import field_name
from rljob_api.spec.infrastructure import ResourcesSpec
from rljob_operator.build.containers import pod_security, with_given
from rljob_operator.build.flavors import placed
from rljob_operator.build.parts import CONTAINERS, Part, Site, digest, part_labels
from rljob_operator.build.scheduling import (
    LABEL_RUN_VOLUME,
    bounded,
    has_run_volume,
    pod_annotations,
    pod_labels,
    pod_scheduling,
)
from rljob_operator.build.template_patch import patched
from rljob_operator.build.template_protection import AdministratorTemplate, ProtectedFieldChanged, protected_changes
from rljob_operator.options import WorkloadOptions


def pod_template(
    site: Site,
    part: Part,
    spec: dict[str, Any],
    resources: ResourcesSpec,
    image: str | None,
    patch: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The template of a part's pods, a role's with the role's patch.

    `resources` and `image` (None: the operator's) are what the job's spec sets for the operator's container in it.
    Nothing in it changes while the job lives, unless its pods are to be replaced. The more specific wins: what the
    operator makes, the administrator's patch, the fields of the job's spec, the patch in it.
    ProtectedFieldChanged: the job would change what the administrator's template sets.
    """
    volume = {LABEL_RUN_VOLUME: site.name} if has_run_volume(part) else {}
    annotated = pod_annotations(site, part)
    made = {
        "metadata": {
            "labels": {**part_labels(site, part), **volume, **pod_labels(site, part)},
            **({"annotations": annotated} if annotated else {}),
        },
        "spec": {**_shared(site), **spec},
    }
    admin = administrator_template(site.workloads, part)
    before = patched(made, admin.patch)
    own = _for_part(site.job.spec.infrastructure.template, part) if part.role is None else patch
    template = patched(_with_fields(site, part, before, resources, image), own or {})
    if found := protected_changes(admin, before, template, template_path(part)):
        raise ProtectedFieldChanged(found)
    template = placed(site, part, template)
    template["spec"] = {**template["spec"], "tolerations": bounded(template["spec"].get("tolerations", []))}
    annotations = template["metadata"].get("annotations", {})
    named = {"annotations": {**annotations, cluster.ANNOTATION_TEMPLATE: digest(template)}}
    return {**template, "metadata": {**template["metadata"], **named}}


def administrator_template(workloads: WorkloadOptions, part: Part) -> AdministratorTemplate:
    """What the administrator's template sets in a part's pods."""
    return AdministratorTemplate(_for_part(workloads.pod_template, part), part.container)


def _with_fields(
    site: Site, part: Part, template: dict[str, Any], resources: ResourcesSpec, image: str | None
) -> dict[str, Any]:
    """`template` with what fields of the job's spec set for such pods."""
    (container,) = (each for each in template["spec"]["containers"] if each["name"] == part.container)
    fields = {"name": part.container, **({"image": image} if image else {})}
    stated = patched(template, {"spec": {**pod_scheduling(site), "containers": [fields]}})
    asked = with_given(container.get("resources", {}), resources)
    containers = [
        {**each, "resources": asked} if each["name"] == part.container else each
        for each in stated["spec"]["containers"]
    ]
    return {**stated, "spec": {**stated["spec"], "containers": containers}}


def template_path(part: Part) -> str:
    """The field of the spec by which a job patches these pods."""
    return "infrastructure.template" if part.role is None else f"roles.{field_name(part.role)}.template"


def _shared(site: Site) -> dict[str, Any]:
    pulls = [{"name": name} for name in site.workloads.pull_secrets]
    return {**pod_security(), **({"imagePullSecrets": pulls} if pulls else {})}


def _for_part(patch: dict[str, Any], part: Part) -> dict[str, Any]:
    """A patch of several parts' pods as it concerns one: without the containers of the others."""
    spec = patch.get("spec", {})
    if "containers" not in spec:
        return patch
    others = {name for name in CONTAINERS if name != part.container}
    remaining = [container for container in spec["containers"] if container["name"] not in others]
    return {**patch, "spec": {**spec, "containers": remaining}}
