"""Devices by Dynamic Resource Allocation: the claim templates of roles with a `deviceClass`, and what their pods say.

A template's spec cannot be changed, so its name has a digest of it; one that is no longer wanted is deleted as any
other object of the job. The claims are made from it by Kubernetes, one for each pod, and go with the pod. Pure.
"""

from collections.abc import Iterator
from typing import Any

from rljob_api.cluster import deployment_name
from rljob_api.names import Role
from rljob_api.roles import field_name
from rljob_api.spec.roles import RoleSpec
from rljob_operator.build.parts import Manifest, Site, digest, manifest, role_part

API_VERSION = "resource.k8s.io/v1"


KIND = "ResourceClaimTemplate"


MISSING_API = (
    f"spec.roles.{{role}}.deviceClass: {{given}} needs the API {API_VERSION}, which this cluster does not serve. Use "
    "Kubernetes 1.34 or newer with a driver for the devices, or ask for them by gpuResource."
)


CLAIM = "gpus"
"""Name of the claim within its pod."""


def without_api(site: Site) -> str | None:
    """The sentence for a cluster without the API, if the job needs it."""
    asking = ((role, spec.device_class) for role, spec in site.job.spec.roles.present().items() if spec.device_class)
    return next((MISSING_API.format(role=field_name(role), given=given) for role, given in asking), None)


def claim_templates(site: Site) -> Iterator[Manifest]:
    """The template of each role that asks for devices of a class."""
    for role, spec in site.job.spec.roles.present().items():
        if spec.device_class is not None:
            claim = {"spec": _devices(spec)}
            yield manifest(site, (API_VERSION, KIND), _name(site, role, spec), {"spec": claim}, role_part(role))


def pod_claims(site: Site, role: Role, spec: RoleSpec) -> dict[str, Any]:
    """Fields of a pod's spec."""
    if spec.device_class is None:
        return {}
    return {"resourceClaims": [{"name": CLAIM, "resourceClaimTemplateName": _name(site, role, spec)}]}


def container_claims(spec: RoleSpec) -> dict[str, Any]:
    """Fields of a container's resources."""
    return {} if spec.device_class is None else {"claims": [{"name": CLAIM}]}


def _devices(spec: RoleSpec) -> dict[str, Any]:
    """A request for each device, so that the claim's status says which is the one of which rank."""
    exactly = {"deviceClassName": spec.device_class, "allocationMode": "ExactCount", "count": 1}
    return {"devices": {"requests": [{"name": f"gpu-{index}", "exactly": exactly} for index in range(spec.gpus)]}}


def _name(site: Site, role: Role, spec: RoleSpec) -> str:
    return f"{deployment_name(site.name, role)}-gpus-{digest(_devices(spec))[:8]}"
