"""A node is drained, before maintenance: the drain ends, the job trains on the other node, and nothing is counted.

Nor is a step lost, though the job saves only when it has to: the drain is refused the coordinator as long as the actor
beside it has to save.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, KubectlFailed, Object
from tests.cluster.harness.machine import FIRST, SECOND, Cluster, workload_options
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, make_small_job, slowed

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

DRAIN_SECONDS = 420.0


@pytest.fixture
def second(cluster: Cluster) -> Iterator[None]:
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: it cannot be given a second node, to drain it")
    cluster.node.second("add")
    yield
    cluster.node.second("remove")


def workloads() -> Object:
    """Pods prefer the second node, and have a minute to end."""
    options = workload_options()
    template = options["podTemplate"]
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [SECOND]}
    term = {"weight": 100, "preference": {"matchExpressions": [expression]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    spec = {**template["spec"], "affinity": affinity}
    return {**options, "podTemplate": {**template, "spec": spec}, "terminationGraceSeconds": 60}


def evict(job: ClusterJob, pod: str) -> None:
    """As a drain does."""
    metadata = {"name": pod, "namespace": job.kubectl.namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{job.kubectl.namespace}/pods/{pod}/eviction"
    job.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))


def nodes_of(job: ClusterJob) -> set[str]:
    pods = job.kubectl.all("pods", f"rljob.dev/job={job.name}")
    return {pod["spec"].get("nodeName", "") for pod in pods}


@pytest.mark.usefixtures("second")
def test_a_job_leaves_a_drained_node_with_its_volume_of_one_node(
    cluster: Cluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    install_definition(cluster.kubeconfig)
    manifest = make_small_job(
        rollout={"numRollouts": 100_000},
        checkpoint={"everySteps": 100_000},
        restartPolicy={"heartbeatTimeoutSeconds": 60},
    )
    job = ClusterJob(kubectl, slowed(manifest, "slower"))
    # The policies let the first node's processes at a coordinator of another one only if it may be the API server.
    with OperatorProcess(cluster, kubectl.namespace, tmp_path, coordinatorAccess="Proxy", workloads=workloads()):
        job.apply().wait_epoch_ready(1)
        assert nodes_of(job) == {SECOND}, job.summary()
        job.wait_step(10)
        before = job.step()

        (coordinator,) = job.pods("coordinator")
        with pytest.raises(KubectlFailed, match="disruption budget"):
            evict(job, coordinator["metadata"]["name"])
        flags = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={DRAIN_SECONDS:.0f}s")
        kubectl("drain", SECOND, f"--pod-selector=rljob.dev/job={job.name}", *flags, seconds=DRAIN_SECONDS + 60)
        job.wait("the job to train on the other node", lambda: nodes_of(job) == {FIRST} and job.is_true("Ready"))

        job.wait_step(before + 3)
        assert job.status()["training"]["checkpoint"] >= before, job.summary()
        restart = job.status()["restart"]
        assert restart["countedTowardsMax"] == 0, job.summary()
        reasons = {event["reason"] for event in job.events() if event["action"] == "RestartGlobal"}
        assert reasons <= {"PodEvicted", "PodDeleted"}, job.summary()
        job.change({"rollout": {"numRollouts": job.step() + 5}})
        job.assert_succeeded()
