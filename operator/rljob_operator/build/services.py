"""Services: an address for the coordinator, the control Redis and each storage unit that outlives their pods.

They list pods that are not ready too: clients try again by themselves and are let in the moment a server listens, not
a probe later. Workers have none: the coordinator tells their addresses.
"""

from typing import Any

from rljob_api import cluster
from rljob_operator.build import coordinator
from rljob_operator.build.metadata import manifest, selector
from rljob_operator.build.parts import Manifest, Part, Site
from rljob_operator.build.redis import CONTROL_PART, STORAGE_PART

_POD_NAME = "statefulset.kubernetes.io/pod-name"
"""Kubernetes puts it on the pods of a StatefulSet."""
_HTTP = {"name": "http", "port": cluster.COORDINATOR_PORT, "targetPort": "http"}
_REDIS = {"name": "redis", "port": cluster.REDIS_PORT, "targetPort": "redis"}


def services(site: Site) -> list[Manifest]:
    """All of them."""
    return [
        _service(site, coordinator.PART, cluster.coordinator_name(site.name), _HTTP),
        _service(site, CONTROL_PART, cluster.control_name(site.name), _REDIS),
        _service(site, STORAGE_PART, cluster.storage_name(site.name), _REDIS, clusterIP="None"),
        *(_unit(site, unit) for unit in range(site.job.spec.transfer_queue.storage_units)),
    ]


def _unit(site: Site, unit: int) -> Manifest:
    name = cluster.storage_unit_name(site.name, unit)
    return _service(site, STORAGE_PART, name, _REDIS, selector={**selector(site, STORAGE_PART), _POD_NAME: name})


def _service(site: Site, part: Part, name: str, port: dict[str, Any], **fields: Any) -> Manifest:  # noqa: ANN401 - JSON
    spec = {"selector": selector(site, part), "ports": [port], "publishNotReadyAddresses": True, **fields}
    return manifest(site, ("v1", "Service"), name, {"spec": spec}, part)
