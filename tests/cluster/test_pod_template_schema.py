"""Kubernetes' own schema of a pod template over the operator's table of places that name objects."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_operator.build.named_objects import POD_PLACES
from tests.cluster.harness.kubectl import Kubectl

NO_OBJECTS = re.compile(
    r"(resourceFieldRef\.containerName|targetContainerName|resizePolicy\.\[\]\.resourceName|windowsOptions\.runAsUserName"
    r"|metadata\.generateName|ownerReferences\.\[\]\.name|(azureDisk|azureFile|flocker|gcePersistentDisk|iscsi|scaleIO"
    r"|storageos|vsphereVolume)\.\w+Name|fileKeyRef\.volumeName)$"
)
"""Names of containers, users of Windows, volumes of the pod and outside, and metadata that no template has."""


def test_every_field_of_a_pod_template_that_names_an_object_is_in_the_table(kubectl: Kubectl) -> None:
    schemas = json.loads(kubectl("get", "--raw", "/openapi/v3/api/v1"))["components"]["schemas"]
    known = {".".join(place.path) for place in POD_PLACES}
    found = {
        path
        for kind, path in fields_of(schemas, "io.k8s.api.core.v1.PodTemplateSpec")
        if re.search(r"(Name|Class|endpoints|driver|[aA]ccount)$", path)
        or (path.endswith(".name") and re.search(r"Secret|ConfigMap|Reference|TrustBundle", kind))
    }
    assert {path for path in found - known if not NO_OBJECTS.search(path)} == set()
    assert len(found & known) > 40


def fields_of(schemas: Mapping[str, Any], kind: str, path: str = "") -> Iterator[tuple[str, str]]:
    """The kind and path of each field below a kind that is no object."""
    for name, node in schemas[kind].get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        inner, where = (node["items"], f"{where}.[]") if node.get("type") == "array" else (node, where)
        refers = [each["$ref"] for each in (inner, *inner.get("allOf", [])) if "$ref" in each]
        if refers:
            yield from fields_of(schemas, refers[0].rpartition("/")[2], where)
        else:
            yield kind, where
