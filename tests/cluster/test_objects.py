"""Objects of a job that other clients edit or delete, and a job that a finalizer keeps: on a real API server.

The jobs never run: their workers sleep. They are of one namespace and of operators that follow one another.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.cluster import LABEL_JOB, config_name, coordinator_name, secret_name
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import Cluster, idle_workload_options
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, leaves_nothing, make_small_job

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def operator(cluster: Cluster, kubectl: Kubectl, tmp_path: Path) -> Iterator[OperatorProcess]:
    """Of the test's namespace. Its pods end at once."""
    install_definition(cluster.kubeconfig)
    with tempfile.TemporaryDirectory(prefix="rljob-idle-") as idle:
        workloads = {**idle_workload_options(Path(idle)), "terminationGraceSeconds": 1}
        with OperatorProcess(cluster, kubectl.namespace, tmp_path, workloads=workloads) as process:
            yield process


def begun(kubectl: Kubectl, name: str, **metadata: object) -> ClusterJob:
    """A job with pods."""
    manifest = leaves_nothing(make_small_job(name))
    job = ClusterJob(kubectl, {**manifest, "metadata": {**manifest["metadata"], **metadata}}).apply()
    job.wait("its pods", lambda: len(job.pods()) == len(job.status().get("roles", ())) > 0)
    return job


def wait_restored(job: ClusterJob, part: str) -> None:
    """Until an Event says so."""

    def is_reported() -> bool:
        return any(part in event["note"] for event in job.events("ObjectRestored"))

    job.wait(f"an event ObjectRestored with {part}", is_reported)


def test_what_other_clients_edit_or_delete_is_restored_and_named(kubectl: Kubectl, operator: OperatorProcess) -> None:
    job = begun(kubectl, "edited")
    config, service, secret = config_name(job.name), coordinator_name(job.name), secret_name(job.name)
    wanted, retained = kubectl.get("configmap", config), kubectl.get("secret", secret)
    assert wanted is not None
    assert retained is not None

    def is_whole(found: Object) -> bool:
        return bool(found["data"] == wanted["data"]) and not found.get("immutable")

    kubectl.merge("configmap", config, {"data": {"job.json": "{}"}, "metadata": {"labels": {"team": "blue"}}})
    restored = kubectl.wait_for("configmap", config, "to be restored", is_whole)
    assert restored["metadata"]["labels"]["team"] == "blue"
    wait_restored(job, f"ConfigMap {config} was changed by kubectl-patch: data.job.json")

    kubectl.delete("service", service)
    wait_restored(job, f"Service {service} was deleted")
    kubectl("label", "service", f"{job.name}-control", f"{LABEL_JOB}=another", "--overwrite")
    kubectl.wait_for(
        "service",
        f"{job.name}-control",
        "to have its label",
        lambda it: it["metadata"]["labels"][LABEL_JOB] == job.name,
    )

    # While no operator runs; an immutable one has to be made anew.
    operator.kill()
    kubectl.merge("configmap", config, {"data": {"job.json": "{}"}, "immutable": True})
    kubectl.delete("secret", secret)
    operator.start()
    kubectl.wait_for("configmap", config, "to be restored", is_whole)
    wait_restored(job, "data.job.json, immutable")
    again = kubectl.wait_for("secret", secret, "to be there again", lambda found: found)
    assert again["data"] == retained["data"]
    job.wait_event("SecretRestored")

    kubectl.delete("secret", secret)
    kubectl.wait_for(
        "secret", secret, "to be there again", lambda it: it["metadata"]["uid"] != again["metadata"]["uid"]
    )
    assert not job.is_true("Failed")


def test_a_job_that_a_finalizer_keeps_ends_its_pods_and_names_it(kubectl: Kubectl, operator: OperatorProcess) -> None:
    job = begun(kubectl, "kept", finalizers=["example.com/audit"])
    kubectl.delete("rljob", job.name)
    job.wait("no pod to be left", lambda: not kubectl.all("pods", f"{LABEL_JOB}={job.name}"))
    job.wait("its status to say so", lambda: not job.is_true("Progressing"))
    assert (job.status()["phase"], job.status()["reason"]) == ("Deleting", "Deleting")
    assert "the finalizer example.com/audit must be removed" in job.condition("Ready")["message"]
    assert len(job.events("Deleting")) == 1

    # What is applied under its name changes the job that goes; an operator that starts makes no pod of it.
    operator.kill()
    kubectl.apply(job.manifest)
    operator.start()
    kubectl.merge("rljob", job.name, {"metadata": {"finalizers": None}})
    kubectl.wait_gone("rljob", job.name)
    made = "deployment,statefulset,pods"
    kubectl.wait("its objects to be gone", lambda: not kubectl.all(made, f"{LABEL_JOB}={job.name}"))
