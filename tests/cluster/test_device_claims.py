"""Devices by Dynamic Resource Allocation, on a pretended node whose driver says that it has four: the claims that
Kubernetes makes and allocates for a job. No process runs there, so that nothing is seen of what a container gets.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.gangs import add_pretended_nodes, pretended
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, leaves_nothing, make_small_job

CLASS = "gpu.rljob.example"
DRIVER = "gpu.rljob.example"
NODE_NAME = "fake0"
API = "resource.k8s.io/v1"

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture
def four_devices(cluster: Cluster, kubectl: Kubectl) -> Iterator[None]:
    """A class, and a node of which a driver says that it has four devices of it."""
    install_definition(cluster.kubeconfig)
    add_pretended_nodes(1)
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    kubectl.apply(
        {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": CLASS}, "spec": {"selectors": [selector]}},
        {
            "apiVersion": API,
            "kind": "ResourceSlice",
            "metadata": {"name": f"{NODE_NAME}-{DRIVER}"},
            "spec": {
                "driver": DRIVER,
                "nodeName": NODE_NAME,
                "pool": {"name": NODE_NAME, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": f"device-{index}"} for index in range(4)],
            },
        },
    )
    yield
    kubectl("delete", f"resourceslice/{NODE_NAME}-{DRIVER}", f"deviceclass/{CLASS}", "node/" + NODE_NAME)


def make_claiming_job(gpus: int, device_class: str = CLASS) -> Object:
    """Of its pods the actor's alone is to be placed on the pretended node, where no volume can be mounted."""
    template = pretended()
    template["spec"]["volumes"] = [{"name": "run", "persistentVolumeClaim": None, "emptyDir": {}}]
    actor: dict[str, Any] = {"gpus": gpus, "deviceClass": device_class, "template": template}
    roles: dict[str, Any] = {"actor": actor, "rollout": {"gpus": 0}}
    return leaves_nothing(make_small_job(roles=roles, training={"microBatchSize": 4}))


def claims(kubectl: Kubectl) -> list[Object]:
    return kubectl.all("resourceclaims")


def devices(kubectl: Kubectl) -> list[tuple[str, str]]:
    """Request and device of the only claim; empty before it is allocated."""
    found = claims(kubectl)
    if len(found) != 1:
        return []
    results = found[0].get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return [(each["request"], each["device"]) for each in results]


@pytest.mark.usefixtures("four_devices")
def test_each_rank_has_a_device_of_its_own_and_a_change_claims_again(
    cluster: Cluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    job = ClusterJob(kubectl, make_claiming_job(2))
    with OperatorProcess(cluster, kubectl.namespace, tmp_path, lease=None):
        job.apply()
        kubectl.wait("two devices", lambda: len(devices(kubectl)) == 2)
        first = dict(devices(kubectl))
        assert set(first) == {"gpu-0", "gpu-1"}
        assert len(set(first.values())) == 2
        (pod,) = job.pods(role="actor")
        assert pod["spec"]["nodeName"] == NODE_NAME
        assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpus"}]

        kubectl.apply(make_claiming_job(4))
        kubectl.wait("four devices", lambda: len(devices(kubectl)) == 4)
        kubectl.wait("one template", lambda: len(kubectl.all("resourceclaimtemplates")) == 1)

        kubectl.apply(make_claiming_job(8))
        job.wait("the scheduler's reason", lambda: "allocate" in job.condition("Ready")["message"])

        kubectl.delete("rljob", "job")
        kubectl.wait("no claim", lambda: not claims(kubectl) and not kubectl.all("resourceclaimtemplates"))
