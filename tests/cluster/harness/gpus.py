"""GPUs that a node of the cluster says to have, and roles that ask for them: their ranks compute on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.harness.kubectl import Kubectl


@contextmanager
def pretended_gpus(kubectl: Kubectl, resource: str, count: int = 4) -> Iterator[None]:
    """A node that runs pods says that it has so many, until the end of the block."""
    node = kubectl.all("node", "type!=kwok")[0]["metadata"]["name"]
    try:
        kubectl.merge("node", node, {"status": {"capacity": {resource: str(count)}}}, subresource="status")
        yield
    finally:
        kubectl.merge("node", node, {"status": {"capacity": {resource: None}}}, subresource="status")


def asks_for(gpus: int, pretends: int, resource: str) -> dict[str, Any]:
    """A role whose pods want so many of the resource, and whose launcher finds so many devices."""
    env = [{"name": "RLJOB_DEVICES", "value": f"fake:{pretends}"}]
    template = {"spec": {"containers": [{"name": "worker", "env": env}]}}
    return {"gpus": gpus, "gpuResource": resource, "template": template}
