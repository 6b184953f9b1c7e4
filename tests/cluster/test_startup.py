"""A job that does not start gives back what it holds: by its deadline, or since its infrastructure does not stay up."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_api.cluster import LABEL_JOB
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.gpus import asks_for, pretended_gpus
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import Cluster, idle_workload_options, workload_options
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, make_small_job

RESOURCE = "rljob.example/startup-gpu"
NOWHERE = {"spec": {"nodeSelector": {"example.org/none": "none"}}}
DEADLINE_SECONDS = 5
"""Given once the actor has its GPUs, however long that takes: it may be over by then."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def four_gpus(kubectl: Kubectl) -> Iterator[None]:
    """A node of the cluster says that it has four."""
    with pretended_gpus(kubectl, RESOURCE):
        yield


def wait_failed(job: ClusterJob) -> tuple[str, str]:
    """Reason and sentence of the condition Failed."""
    job.kubectl.wait(f"{job.name} to fail", lambda: job.condition("Failed"))
    failed = job.condition("Failed")
    return str(failed["reason"]), str(failed["message"])


def waits_for_gpus(kubectl: Kubectl) -> Object:
    """A pod of another that wants all four; the tests' node has the image of every job's pod."""
    image = next(pod for pod in kubectl.all("pods") if pod["metadata"]["labels"].get("rljob.dev/role") == "actor")
    container = {
        **{key: image["spec"]["containers"][0][key] for key in ("image", "imagePullPolicy")},
        "name": "worker",
        "command": ["/bin/true"],
        "resources": {"limits": {RESOURCE: "4"}},
    }
    spec = {"containers": [container], "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waits"}, "spec": spec}


def scheduled(kubectl: Kubectl, pod: str) -> bool:
    found = kubectl.get("pod", pod)
    return bool(found and found["spec"].get("nodeName"))


def runs_but_for_rollouts(job: ClusterJob) -> bool:
    """Whether each pod of the job, its infrastructure too, runs its container: no mount of it can fail any more."""
    pods = job.kubectl.all("pods", f"{LABEL_JOB}={job.name}")
    others = [pod for pod in pods if pod["metadata"]["labels"].get("rljob.dev/role") != "rollout"]
    return all(pod["status"]["phase"] == "Running" for pod in others)


@pytest.mark.usefixtures("four_gpus")
def test_a_job_that_is_not_ready_in_time_gives_its_gpus_back(
    cluster: Cluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    install_definition(cluster.kubeconfig)
    manifest = make_small_job(
        roles={"actor": asks_for(2, 2, RESOURCE), "rollout": {"template": NOWHERE}},
        training={"microBatchSize": 16},
    )
    job = ClusterJob(kubectl, manifest)
    with (
        tempfile.TemporaryDirectory(prefix="rljob-idle-") as idle,
        OperatorProcess(cluster, kubectl.namespace, tmp_path, lease=None, workloads=idle_workload_options(Path(idle))),
    ):
        job.apply()
        kubectl.wait(
            "the actor to have its GPUs",
            lambda: any(pod["spec"].get("nodeName") for pod in job.pods(role="actor")),
        )
        kubectl.apply(waits_for_gpus(kubectl))
        nowhere = "rollout-0 (0/1 nodes are available"
        kubectl.wait("the rollout's wait to be named", lambda: nowhere in job.condition("Ready").get("message", ""))
        # On a busy machine probes and mounts fail at first, which the condition names before a rollout without a node.
        kubectl.wait("all other pods to run", lambda: runs_but_for_rollouts(job))
        kubectl.wait("it to be the cause", lambda: job.condition("Ready").get("reason") == "Unschedulable")
        job.change({"startupDeadlineSeconds": DEADLINE_SECONDS})
        reason, message = wait_failed(job)
        assert reason == "StartupDeadlineExceeded", message
        assert message.startswith(
            f"the job has not been Ready for startupDeadlineSeconds ({DEADLINE_SECONDS} s): Unschedulable: "
        )
        assert nowhere in message
        assert (job.status()["phase"], job.status()["reason"]) == ("Failed", "StartupDeadlineExceeded")
        (event,) = kubectl.wait("its event", lambda: job.events("StartupDeadlineExceeded"))
        assert event["type"] == "Warning"
        kubectl.wait("its pods to go", lambda: not job.pods())
        kubectl.wait("who waits for the GPUs to get them", lambda: scheduled(kubectl, "waits"))
        kubectl.delete("rljob", job.name)


@pytest.mark.long
def test_infrastructure_that_is_restarted_in_vain_fails_the_job_with_its_last_message(
    cluster: Cluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    """The kubelet's back-off would take twenty minutes: all but the last of the ends are written into the status."""
    install_definition(cluster.kubeconfig)
    # A shell takes no argument --port, says so, and ends.
    workloads: dict[str, Any] = {**workload_options(), "redisServer": "/bin/sh"}
    job = ClusterJob(kubectl, make_small_job())
    with OperatorProcess(cluster, kubectl.namespace, tmp_path, lease=None, workloads=workloads):
        job.apply()
        kubectl.wait("the restarts to be counted", lambda: in_vain(job, "control") >= 1)
        # Between two of its ends it runs, and no one waits for it.
        kubectl.wait("it to be named", lambda: "control (" in job.condition("Ready").get("message", ""))
        counted = [{**each, "restartsInVain": 8} for each in job.status()["infrastructure"]]
        kubectl.merge("rljob", job.name, {"status": {"infrastructure": counted}}, subresource="status")
        reason, message = wait_failed(job)
        assert reason == "InfrastructureFailing"
        assert re.search("has ended (9|[1-9][0-9]) times since the job was last Ready or trained a step", message), (
            message
        )
        assert "the last time it exited with code 2" in message
        assert "option" in message.rpartition(": ")[2], "the shell's own words"
        kubectl.wait("its pods to go", lambda: not job.pods())
        kubectl.delete("rljob", job.name)


def in_vain(job: ClusterJob, name: str) -> int:
    found = [each for each in job.status().get("infrastructure", []) if each["name"] == name]
    return int(found[0].get("restartsInVain", 0)) if found else 0
