"""Jobs stay as they are while their operator is replaced by another version, and while that is taken back.

One runs, one has failed and one has succeeded. Their pods run the release that began them, and their claims keep what
that release has promised of them. The CRD is today's all the time: the cluster is shared with other tests, and
after a rollback of the operator it is today's as well.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rljob_api.cluster import LABEL_JOB, checkpoint_claim_name, control_claim_name, control_name
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.earlier import check_out
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import Cluster, Node
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, gated_rewards, make_job, slowed

RELEASE = "0.2.0"
PATIENT = {"heartbeatTimeoutSeconds": 60}
COMPONENTS = ("worker", "coordinator", "control", "storage")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    try:
        return check_out(RELEASE, tmp_path / "release")
    except LookupError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@contextmanager
def long_job(cluster: Cluster, kubectl: Kubectl) -> Iterator[tuple[ClusterJob, Path]]:
    """Not applied yet; it trains slowly until its folder has a file `go`."""
    install_definition(cluster.kubeconfig)
    with gated_rewards() as gate:
        manifest = make_job(rollout={"numRollouts": 120}, restartPolicy=PATIENT)
        del manifest["spec"]["roles"]["advantages"]  # the release before has the role all the same, and so it stays
        yield ClusterJob(kubectl, slowed(manifest, "gated", gate)), gate


@pytest.mark.long
def test_an_upgrade_and_a_rollback_touch_no_pod_whatever_has_become_of_its_job(
    cluster: Cluster, node: Node, kubectl: Kubectl, namespace: str, tmp_path: Path, release: Path
) -> None:
    with long_job(cluster, kubectl) as (job, gate):
        with OperatorProcess(cluster, namespace, tmp_path / "first", sources=release):
            ended = [succeeded(kubectl), failed(kubectl)]
            job.apply().wait_epoch_ready(1)
            began = [standing(each) for each in (job, *ended)]
            assert all(str(release / "workers") in json.dumps(pod["spec"]) for pod in job.pods())
        with OperatorProcess(cluster, namespace, tmp_path / "upgraded"):
            restart_a_rank(job, 1)
            assert [standing(each) for each in (job, *ended)] == began
        with OperatorProcess(cluster, namespace, tmp_path / "back", sources=release):
            restart_a_rank(job, 2)
            assert [standing(each) for each in (job, *ended)] == began
            (gate / "go").touch()
            report = job.assert_succeeded()
    assert report.problems == []
    assert job.status()["restart"]["globalRestarts"] == 0


@pytest.mark.long
def test_a_job_of_the_release_before_loses_a_pod_and_gets_another_replica_under_this_operator(
    cluster: Cluster, node: Node, kubectl: Kubectl, namespace: str, tmp_path: Path, release: Path
) -> None:
    """New pods run what the job began with, and meet its coordinator; then the earlier operator goes on with it."""
    with long_job(cluster, kubectl) as (job, gate):
        with OperatorProcess(cluster, namespace, tmp_path / "first", sources=release):
            job.apply().wait_epoch_ready(1)
            (advantages,) = job.pods(role="advantages")
        with OperatorProcess(cluster, namespace, tmp_path / "upgraded"):
            kubectl("delete", "pod", advantages["metadata"]["name"], "--wait=false")
            job.wait("another pod of advantages to be ready", lambda: is_another(job, advantages) and is_ready(job))
            kubectl("scale", f"rlj/{job.name}", "--replicas=2")
            job.wait("a second rollout to be ready", lambda: len(job.pods(role="rollout")) == 2 and is_ready(job))
            assert all(str(release / "workers") in json.dumps(pod["spec"]) for pod in job.pods())
        with OperatorProcess(cluster, namespace, tmp_path / "back", sources=release):
            (gate / "go").touch()
            report = job.assert_succeeded()
    assert report.problems == []
    assert job.status()["restart"]["globalRestarts"] == 0


@pytest.mark.long
def test_claims_stay_as_they_are_over_a_rollback_and_an_upgrade(
    cluster: Cluster, node: Node, kubectl: Kubectl, namespace: str, tmp_path: Path, release: Path
) -> None:
    """Made by this version, met by the release before after a rollback, and trained on after an upgrade."""
    install_definition(cluster.kubeconfig)
    with OperatorProcess(cluster, namespace, tmp_path / "first"):
        job = succeeded(kubectl, "stays")
    claim = checkpoint_claim_name(job.name)
    retained = claims(job)
    with OperatorProcess(cluster, namespace, tmp_path / "back", sources=release):
        other = failed(kubectl, "other")  # it works
        assert claims(job) == retained
        kubectl("delete", "rljob", job.name)
        kubectl.wait_gone("deployment", f"{job.name}-coordinator")
    assert claims(job) == retained
    made_before = claims(other)
    assert list(made_before) == [checkpoint_claim_name("other")]
    with OperatorProcess(cluster, namespace, tmp_path / "upgraded"):
        manifest = make_job(job.name, rollout={"numRollouts": 4}, restartPolicy=PATIENT)
        again = ClusterJob(kubectl, manifest).apply()
        report = again.assert_succeeded()
        assert (report.steps, report.epochs) == (4, 2)
        assert claims(other) == made_before
    assert kubectl.get("persistentvolumeclaim", claim) is not None


@pytest.mark.long
def test_a_job_of_the_release_before_is_edited_and_restarts_on_the_volume_of_its_control_redis(
    cluster: Cluster, node: Node, kubectl: Kubectl, namespace: str, tmp_path: Path, release: Path
) -> None:
    """Its set has made the claim, and no set's claims can change; this operator makes such a claim itself."""
    with long_job(cluster, kubectl) as (job, gate):
        with OperatorProcess(cluster, namespace, tmp_path / "first", sources=release):
            job.apply().wait_epoch_ready(1)
            volume = control_volume(job)
        with OperatorProcess(cluster, namespace, tmp_path / "upgraded"):
            job.change({"training": {"optimizer": {"learningRate": 2e-3}}})
            job.wait_epoch_ready(2)
            job.change({"suspend": True})
            job.wait("all pods to go", lambda: not job.pods())
            job.change({"suspend": False})
            job.wait_epoch_ready(3)
            assert job.is_true("Accepted"), job.summary()
            assert control_volume(job) == volume
            (gate / "go").touch()
            assert job.assert_succeeded().problems == []
            kubectl("delete", "rljob", job.name)
            kubectl.wait_gone("persistentvolumeclaim", control_claim_name(job.name))


@pytest.mark.long
def test_a_job_of_the_release_before_that_this_one_refuses_is_supervised_by_its_accepted_spec(
    cluster: Cluster, node: Node, kubectl: Kubectl, namespace: str, tmp_path: Path, release: Path
) -> None:
    with long_job(cluster, kubectl) as (job, gate):
        job.manifest["spec"]["infrastructure"] = {"template": {"spec": {"containers": [FEEDER]}}}
        with OperatorProcess(cluster, namespace, tmp_path / "first", sources=release):
            job.apply().wait_epoch_ready(1)
        with OperatorProcess(cluster, namespace, tmp_path / "upgraded"):
            job.wait("its refusal", lambda: job.condition("Accepted").get("status") == "False")
            assert "containers[tracker].command: cannot be patched" in job.condition("Accepted")["message"]
            restart_a_rank(job, 1)
            (gate / "go").touch()
            assert job.assert_succeeded().problems == []


FEEDER = {
    "name": "tracker",
    "image": "localhost/tiny:1",
    "imagePullPolicy": "Never",
    "command": ["/tiny", "serve", ":8099"],
}
"""A sidecar of the user's, with a name that is the operator's own by now."""


def control_volume(job: ClusterJob) -> tuple[list[str], str, str]:
    """Kinds of the owners of the control Redis' claim, its uid, and the uid of the set."""
    claim = job.kubectl.get("persistentvolumeclaim", control_claim_name(job.name))
    made = job.kubectl.get("statefulset", control_name(job.name))
    assert claim is not None
    assert made is not None
    owners = [each["kind"] for each in claim["metadata"]["ownerReferences"]]
    return owners, claim["metadata"]["uid"], made["metadata"]["uid"]


def succeeded(kubectl: Kubectl, name: str = "succeeded") -> ClusterJob:
    """A job that is done."""
    job = ClusterJob(kubectl, make_job(name, rollout={"numRollouts": 2}, restartPolicy=PATIENT)).apply()
    job.wait_true("Succeeded")
    return job


def failed(kubectl: Kubectl, name: str = "failed") -> ClusterJob:
    """A job that has failed, and whose pods of infrastructure stay."""
    manifest = make_job(name, restartPolicy=PATIENT)
    manifest["spec"] |= {"activeDeadlineSeconds": 1, "cleanPodPolicy": "Workers"}
    job = ClusterJob(kubectl, manifest).apply()
    job.wait_true("Failed")
    kubectl.wait("its workers to go", lambda: not job.pods("worker"))
    names = [pod["metadata"]["name"] for component in COMPONENTS for pod in job.pods(component)]
    for each in names:
        kubectl.wait_ready(each)
    return job


def claims(job: ClusterJob) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Of each claim who owns it, and what the operator has noted on it."""
    return {
        each["metadata"]["name"]: (
            [owner["uid"] for owner in each["metadata"].get("ownerReferences", []) if owner["kind"] == "RLJob"],
            {key: text for key, text in each["metadata"]["annotations"].items() if key.startswith("rljob.dev/")},
        )
        for each in job.kubectl.all("persistentvolumeclaim", f"rljob.dev/job={job.name}")
        if each["metadata"]["name"] == checkpoint_claim_name(job.name)
    }


def is_another(job: ClusterJob, pod: Object) -> bool:
    """Whether another pod than `pod` is the one of its role."""
    uids = {each["metadata"]["uid"] for each in job.pods(role="advantages")}
    return bool(uids) and pod["metadata"]["uid"] not in uids


def is_ready(job: ClusterJob) -> bool:
    """Whether the job is Ready with each of its pods."""
    return job.is_true("Ready") and all(row["ready"] == row["replicas"] for row in job.status()["roles"])


def standing(job: ClusterJob) -> tuple[object, ...]:
    """Phase, epoch, of each pod how often its containers were started again, versions of workloads, and its claim."""
    pods = [pod for component in COMPONENTS for pod in job.pods(component)]
    restarts = {
        pod["metadata"]["uid"]: [each["restartCount"] for each in pod["status"]["containerStatuses"]] for pod in pods
    }
    workloads = job.kubectl.all("deployment,statefulset", f"{LABEL_JOB}={job.name}")
    versions = {each["metadata"]["uid"]: str(each["metadata"]["generation"]) for each in workloads}
    return job.status()["phase"], job.epoch(), restarts, versions, claims(job)


def restart_a_rank(job: ClusterJob, failures: int) -> None:
    """Kills a rank that is started again in place: the operator is asked to decide, and its order is taken."""
    job.process("advantages").kill()

    def is_back() -> bool:
        row = next(row for row in job.status()["roles"] if row["name"] == "advantages")
        return bool(row["failures"] == failures and job.is_true("Ready"))

    job.wait(f"failure {failures} of advantages to be made good", is_back)
