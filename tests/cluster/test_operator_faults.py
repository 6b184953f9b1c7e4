"""The operator under faults, against a real API server and real jobs: killed at every write, paused, cut off, doubled.

Most deaths here are within the test's process (harness/lives.py): an operator's start costs seconds, and a job takes
some sixty writes from `kubectl apply` to Ready. Two tests kill and freeze real processes.
"""

import pytest

from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.lives import Lives
from tests.cluster.harness.machine import Cluster, Node
from tests.cluster.harness.rljob import ClusterJob, make_job, slowed

MADE = "secret,configmap,service,persistentvolumeclaim,deployment,statefulset,networkpolicy,poddisruptionbudget,pod"


@pytest.fixture(autouse=True)
def crd(cluster: Cluster) -> None:
    install_definition(cluster.kubeconfig)


def is_ready_in(epoch: int, raw: Object | None) -> bool:
    status = (raw or {}).get("status", {})
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    return bool(status.get("restart", {}).get("epoch") == epoch and conditions.get("Ready") == "True")


def step_of(raw: Object | None) -> int:
    step = (raw or {}).get("status", {}).get("training", {}).get("step")
    return -1 if step is None else int(step)


def worker_uids(job: ClusterJob) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in job.pods()}


def test_an_operator_that_dies_after_every_write_comes_to_the_same_end(
    cluster: Cluster, node: Node, kubectl: Kubectl, namespace: str
) -> None:
    job = ClusterJob(kubectl, slowed(make_job("mortal", rollout={"numRollouts": 5000}))).apply()
    lives = Lives(cluster.kubeconfig, namespace, job.name)

    deaths = lives.die_at_every_write(lambda raw: is_ready_in(1, raw), seconds=400)
    kinds = {"Service", "ConfigMap", "PersistentVolumeClaim", "Deployment", "StatefulSet", "NetworkPolicy"}
    assert {f"apply {kind}" for kind in kinds} <= set(deaths)
    assert {"patch RLJob status", "create Secret", "POST /v1/epoch", "PUT /v1/desired"} <= set(deaths)
    assert_came_once(job, epoch=1, restarts=0)
    pods = worker_uids(job)

    job.process("actor").kill()
    deaths = lives.die_at_every_write(lambda raw: is_ready_in(2, raw), seconds=200)
    assert {"patch RLJob status", "POST /v1/epoch", "PUT /v1/desired"} <= set(deaths)
    assert_came_once(job, epoch=2, restarts=1)

    job.change({"training": {"optimizer": {"learningRate": 5e-4}}})
    deaths = lives.die_at_every_write(lambda raw: is_ready_in(3, raw), seconds=200)
    assert {"patch RLJob status", "apply ConfigMap", "POST /v1/epoch", "PUT /v1/desired"} <= set(deaths)
    assert_came_once(job, epoch=3, restarts=2)
    assert worker_uids(job) == pods, "neither a dead rank nor a learning rate replaces a pod"

    step = job.step()
    writes = lives.live(lambda raw: step_of(raw) > step, seconds=120)
    rest = {"patch RLJob status", "create Event", "POST /v1/failures/acknowledge"}
    assert set(writes) <= rest, "an operator that lives on has nothing left to do"

    kubectl.delete("rljob", job.name)
    assert lives.live(lambda raw: raw is None, seconds=60) == []
    kubectl.wait("all of the job's objects to be gone", lambda: not kubectl.all(MADE, "rljob.dev/job"), seconds=120)


def assert_came_once(job: ClusterJob, *, epoch: int, restarts: int) -> None:
    """One epoch a cause, one pod a replica, no container started twice, and a Deployment of one revision."""
    status = job.status()
    assert status["restart"]["epoch"] == epoch, job.said()
    assert status["restart"]["globalRestarts"] == restarts, job.said()
    pods = job.pods()
    assert len(pods) == len(status["roles"]), job.said()
    started = [each["restartCount"] for pod in pods for each in pod["status"]["containerStatuses"]]
    assert started == [0] * len(pods), job.said()
    revisions = job.kubectl.all("replicaset", f"rljob.dev/job={job.name}")
    assert len(revisions) == len(job.kubectl.all("deployment", f"rljob.dev/job={job.name}")), job.said()
