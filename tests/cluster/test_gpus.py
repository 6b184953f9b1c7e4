"""GPUs on a cluster, of a resource that a node pretends to have: asked for, dealt to ranks, refused with a word.

The ranks compute on the CPU: what they were given is read where they wrote it down.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.gpus import asks_for, pretended_gpus
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, make_job, slowed

RESOURCE = "rljob.example/gpu"
PATIENT = {"heartbeatTimeoutSeconds": 60}

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def four_gpus(kubectl: Kubectl) -> Iterator[None]:
    """A node of the cluster says that it has four."""
    with pretended_gpus(kubectl, RESOURCE):
        yield


def devices_of(kubectl: Kubectl, job: ClusterJob, role: str, process: str) -> str:
    """What the process wrote down of its own environment when it began."""
    text = kubectl("exec", job.pod_of(role), "--", "cat", f"/run/rljob/devices/{process}.json")
    return str(json.loads(text)["devices"])


@pytest.mark.long
@pytest.mark.usefixtures("four_gpus")
def test_each_rank_of_a_pod_has_its_own_of_the_pods_devices(cluster: Cluster, kubectl: Kubectl, tmp_path: Path) -> None:
    install_definition(cluster.kubeconfig)
    roles = {"actor": asks_for(2, 2, RESOURCE), "actorFwd": asks_for(1, 1, RESOURCE), "reference": {}}
    manifest = make_job(
        roles=roles, training={"microBatchSize": 16}, rollout={"numRollouts": 1_000_000}, restartPolicy=PATIENT
    )
    job = ClusterJob(kubectl, slowed(manifest))
    with OperatorProcess(cluster, kubectl.namespace, tmp_path, lease=None):
        job.apply()
        job.wait_true("Ready")
        found = {name: devices_of(kubectl, job, "actor", name) for name in ("actor-0.0", "actor-0.1")}
        assert found == {"actor-0.0": "fake-0", "actor-0.1": "fake-1"}
        assert devices_of(kubectl, job, "actor_fwd", "actor_fwd-0.0") == "fake-0"
        assert devices_of(kubectl, job, "reference", "reference-0.0") == ""
        (pod,) = job.pods(role="actor")
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {RESOURCE: "2"}
        job.wait_step(2)
        kubectl.delete("rljob", "job")


def test_the_api_server_refuses_what_a_cluster_cannot_do(cluster: Cluster, kubectl: Kubectl) -> None:
    install_definition(cluster.kubeconfig)
    small: dict[str, Any] = {"microBatchSize": 1}
    message = kubectl.refusal(make_job(training=small, roles={"actor": {"replicas": 2}}))
    assert "ReadWriteOnce lets one node mount the volume, but the actor has 2 pods" in message
    sharing = {"gpus": 1, "shareDevicesWith": "actor"}
    message = kubectl.refusal(
        make_job(training=small, roles={"actor": {"gpus": 1}, "rollout": sharing}, algorithm={"kl": {}})
    )
    assert "actor is for rljob run on one machine: a cluster gives a device to one pod alone" in message
