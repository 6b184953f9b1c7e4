"""The operator as a process against a real API server: what it makes, what it leaves alone, and who leads.

Jobs here are suspended, so that no pod of theirs costs anything; what runs is tested elsewhere.
"""

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.cluster import LABEL_JOB
from tests.cluster.harness.definition import install_definition, install_monitors
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import REPOSITORY, Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import leaves_nothing

KINDS = "secret,configmap,service,persistentvolumeclaim,deployment,statefulset,networkpolicy,poddisruptionbudget,pod"

WRITES = ("create", "apply", "patch", "update", "delete")


@pytest.fixture(autouse=True)
def crd(cluster: Cluster) -> None:
    install_definition(cluster.kubeconfig)


@pytest.fixture(scope="module")
def operator(
    cluster: Cluster, module_kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """Of all tests that neither stop nor configure it; their jobs differ by name."""
    install_definition(cluster.kubeconfig)
    with OperatorProcess(cluster, module_kubectl.namespace, tmp_path_factory.mktemp("operator")) as process:
        yield process


def make_job(name: str, **spec: Any) -> Object:
    job: Object = yaml.safe_load((REPOSITORY / "examples/quickstart.yaml").read_text())
    job["metadata"]["name"] = name
    job["spec"] |= {"suspend": True, **spec}
    return leaves_nothing(job)


def condition(job: Object, kind: str) -> Object:
    conditions = job.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {})


def wait_condition(kubectl: Kubectl, name: str, kind: str, status: str = "True") -> Object:
    return kubectl.wait_for(
        "rljob",
        name,
        f"to have {kind}={status}",
        lambda job: condition(job, kind).get("status") == status,
    )


def test_a_job_becomes_objects_that_it_owns_and_its_deletion_leaves_nothing(
    module_kubectl: Kubectl, operator: OperatorProcess
) -> None:
    module_kubectl.apply(make_job("first"))
    job = wait_condition(module_kubectl, "first", "Suspended")
    made = module_kubectl.wait(
        "the job's last Deployment",
        lambda: module_kubectl.all(KINDS, LABEL_JOB) if module_kubectl.get("deployment", "first-advantages") else None,
    )

    assert job["status"]["phase"] == "Suspended"
    assert condition(job, "Accepted")["status"] == "True"
    assert job["status"]["observedGeneration"] == job["metadata"]["generation"]
    assert {each["kind"] for each in made} == {
        "Secret",
        "ConfigMap",
        "Service",
        "PersistentVolumeClaim",
        "Deployment",
        "StatefulSet",
        "NetworkPolicy",
        "PodDisruptionBudget",
    }
    for each in made:
        owners = each["metadata"].get("ownerReferences", [])
        assert [owner["uid"] for owner in owners] == [job["metadata"]["uid"]], each["metadata"]["name"]
    assert "finalizers" not in job["metadata"]
    assert not [name for name in job["metadata"].get("annotations", {}) if "kopf" in name]
    module_kubectl.wait("an event", lambda: "Accepted" in reasons(module_kubectl))

    module_kubectl.delete("rljob", "first")
    module_kubectl.wait_gone("rljob", "first")
    module_kubectl.wait("all of the job's objects to be gone", lambda: not module_kubectl.all(KINDS, LABEL_JOB))
    assert operator.exit_code is None


def test_what_somebody_deletes_comes_back_and_the_secret_stays_the_same(
    module_kubectl: Kubectl, operator: OperatorProcess
) -> None:
    module_kubectl.apply(make_job("kept"))
    wait_condition(module_kubectl, "kept", "Suspended")
    secret = module_kubectl.wait_for("secret", "kept-secret", "to be there", lambda found: found)
    module_kubectl.wait_for("deployment", "kept-actor", "to be there", lambda found: found)
    others = "configmap,service,deployment,statefulset,networkpolicy,poddisruptionbudget"
    made = module_kubectl.wait(
        "all kinds of its objects",
        lambda: (
            found if (found := module_kubectl.all(others, LABEL_JOB)) and len({e["kind"] for e in found}) == 6 else None
        ),
    )
    first = {each["kind"]: each["metadata"] for each in made if each["metadata"]["name"] != "kept-actor"}

    for kind, metadata in first.items():
        module_kubectl.delete(kind.lower(), metadata["name"])
    module_kubectl("scale", "deployment", "kept-actor", "--replicas=2")

    for kind, metadata in first.items():
        module_kubectl.wait_for(
            kind.lower(),
            metadata["name"],
            "to be another one",
            lambda found, uid=metadata["uid"]: found["metadata"]["uid"] != uid,  # type: ignore[misc]
        )
    module_kubectl.wait_for(
        "deployment", "kept-actor", "to be scaled back", lambda found: found["spec"]["replicas"] == 0
    )
    now = module_kubectl.get("secret", "kept-secret")
    assert now is not None
    assert now["data"] == secret["data"]
    assert now["metadata"]["uid"] == secret["metadata"]["uid"]


@pytest.mark.long
def test_a_secret_that_was_deleted_is_made_again_or_stated_to_be_lost(
    cluster: Cluster, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    nowhere = {"podTemplate": {"spec": {"nodeSelector": {"example.org/none": "none"}}}}
    operator = OperatorProcess(cluster, namespace, tmp_path / "operator", workloads=nowhere)
    kubectl.apply(make_job("locked", suspend=False))
    with operator:
        pods = f"{LABEL_JOB}=locked"
        kubectl.wait("the job's pods", lambda: kubectl.all("pod", pods))
        secret = kubectl.wait_for("secret", "locked-secret", "to be there", lambda found: found)
        kubectl.delete("secret", "locked-secret")
        again = kubectl.wait_for("secret", "locked-secret", "to be made again", lambda found: found)
        assert again["data"] == secret["data"]
        kubectl.wait("an event", lambda: "SecretRestored" in reasons(kubectl))

    kubectl.delete("secret", "locked-secret")
    with operator:
        job = wait_condition(kubectl, "locked", "Accepted", "False")
        assert condition(job, "Accepted")["reason"] == job["status"]["reason"] == "SecretLost"
        assert kubectl.get("secret", "locked-secret") is None
        kubectl.wait("an event", lambda: "SecretLost" in reasons(kubectl))

        kubectl.merge("rljob", "locked", {"spec": {"suspend": True}})
        wait_condition(kubectl, "locked", "Suspended")
        kubectl.wait("the last pod to be gone", lambda: not kubectl.all("pod", pods))
        kubectl.merge("rljob", "locked", {"spec": {"suspend": False}})
        wait_condition(kubectl, "locked", "Accepted")
        drawn = kubectl.wait_for("secret", "locked-secret", "to be drawn", lambda found: found)
        assert drawn["data"] != secret["data"]
        kubectl.wait("pods", lambda: kubectl.all("pod", pods))


def reasons(kubectl: Kubectl) -> set[str]:
    return {event["reason"] for event in kubectl.all("events.events.k8s.io")}


def test_a_spec_that_cannot_work_is_stated_so_once_and_a_cure_is_taken_up(
    module_kubectl: Kubectl, operator: OperatorProcess
) -> None:
    bad = {"spec": {"containers": [{"name": "worker", "command": ["sleep"]}]}}
    module_kubectl.apply(make_job("bad", roles={"reference": {}, "actor": {"template": bad}}))
    job = wait_condition(module_kubectl, "bad", "Accepted", "False")

    refused = condition(job, "Accepted")
    assert refused["reason"] == "InvalidSpec"
    assert "roles.actor.template" in refused["message"]
    assert job["status"]["phase"] == "Pending"
    assert not module_kubectl.all("pod,deployment", f"{LABEL_JOB}=bad")

    module_kubectl.merge("rljob", "bad", {"spec": {"roles": {"actor": {"template": None}}}})
    wait_condition(module_kubectl, "bad", "Accepted")


@pytest.mark.long
def test_a_status_of_another_version_begins_nothing_again(
    cluster: Cluster, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    """A job that has succeeded stays so, whatever a later version wrote beside it; what cannot be read is said."""
    done = {"reason": "Succeeded", "message": "all is trained", "lastTransitionTime": "2026-11-22T10:00:00Z"}
    succeeded = {"type": "Succeeded", "status": "True", "severity": "Info", **done}
    later = {"type": "Rebalanced", "status": "True", **done}
    newer = {"phase": "Rebalancing", "frontier": {"x": 1}, "conditions": [succeeded, later], "restart": {"epoch": 3}}
    judge = {"name": "judge", "replicas": 1, "ready": 1, "failures": 0}
    for name, roles in (("newer", []), ("unreadable", [judge])):
        kubectl.apply(make_job(name, suspend=False))
        status = json.dumps({"status": {**newer, "roles": roles}})
        kubectl("patch", "rljob", name, "--subresource=status", "--type=merge", "-p", status)
    with OperatorProcess(cluster, namespace, tmp_path / "operator"):
        read = wait_condition(kubectl, "newer", "Accepted")
        unread = wait_condition(kubectl, "unreadable", "Accepted", "False")
        kubectl.wait("an event", lambda: "StatusUnreadable" in reasons(kubectl))

    assert read["status"]["restart"]["epoch"] == unread["status"]["restart"]["epoch"] == 3
    assert condition(read, "Succeeded")["severity"] == "Info"
    assert condition(read, "Rebalanced") | later == condition(read, "Rebalanced")
    assert read["status"]["frontier"] == {"x": 1}
    assert read["status"]["phase"] == "Succeeded"
    refused = condition(unread, "Accepted")
    assert refused["reason"] == unread["status"]["reason"] == "StatusUnreadable"
    assert "roles[0].name" in refused["message"]
    assert condition(unread, "Succeeded") == succeeded
    assert unread["status"]["phase"] == "Rebalancing"
    assert not kubectl.all(KINDS, f"{LABEL_JOB}=unreadable")


@pytest.mark.long
def test_a_job_of_another_controller_is_left_alone(module_kubectl: Kubectl, operator: OperatorProcess) -> None:
    module_kubectl.apply(make_job("foreign", managedBy="example.com/other"))
    module_kubectl.apply(make_job("ours", managedBy="rljob.dev/operator"))
    wait_condition(module_kubectl, "ours", "Suspended")

    foreign = module_kubectl.get("rljob", "foreign")
    assert foreign is not None
    assert "status" not in foreign
    assert not module_kubectl.all(KINDS, f"{LABEL_JOB}=foreign")


def test_an_operator_that_starts_again_writes_nothing_where_nothing_has_changed(
    cluster: Cluster, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    if cluster.node is not None:  # a test beside this one brings them: for an operator that would be a change
        install_monitors()
    port = free_port()
    options: dict[str, Any] = {"metricsPort": port, "lease": None}
    kubectl.apply(make_job("calm"))
    with OperatorProcess(cluster, namespace, tmp_path / "first", **options):
        wait_condition(kubectl, "calm", "Suspended")
        kubectl.wait_for("deployment", "calm-advantages", "to be there", lambda found: found)
        kubectl.wait("the operator to have no more to write", lambda: is_calm(cluster, port))
    before = kubectl.get("rljob", "calm")
    with OperatorProcess(cluster, namespace, tmp_path / "second", **options) as second:
        kubectl.wait("the second operator's turn", lambda: turns(cluster, port) > 0)
        assert writes(cluster, port) == {}
        assert kubectl.get("rljob", "calm") == before
        assert second.stop() == 0


def test_of_two_replicas_one_works_and_the_other_takes_over(
    cluster: Cluster, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    # So long that a busy machine does not make a healthy leader lose it.
    lease = {"name": "two", "namespace": namespace, "durationSeconds": 30, "renewSeconds": 25, "retrySeconds": 2}
    with (
        OperatorProcess(cluster, namespace, tmp_path / "a", lease=lease) as first,
        OperatorProcess(cluster, namespace, tmp_path / "b", lease=lease) as second,
    ):
        kubectl.apply(make_job("one"))
        wait_condition(kubectl, "one", "Suspended")
        leader, other = (first, second) if "is held by" in first.log.read_text() else (second, first)
        assert "is held by" not in other.log.read_text()
        holder = holder_of(kubectl)

        leader.kill()
        kubectl.apply(make_job("two"))
        wait_condition(kubectl, "two", "Suspended")
        assert holder_of(kubectl) != holder

        # A replica that has slept over its lease may not write any more: it ends, and says so.
        leader.start()
        other.pause()
        kubectl.apply(make_job("three"))
        wait_condition(kubectl, "three", "Suspended")
        other.resume()
        kubectl.wait("the replica that was paused to end", lambda: other.exit_code is not None)
        assert other.exit_code == 1
        assert "lost the lease" in other.log.read_text()
        assert leader.exit_code is None


def holder_of(kubectl: Kubectl) -> str:
    lease = kubectl.get("lease", "two")
    assert lease is not None
    return str(lease["spec"]["holderIdentity"])


def free_port() -> int:
    """Of this machine; the node's network is another one, and as good as empty."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def metrics(cluster: Cluster, port: int) -> str:
    command = ["curl", "--silent", "--max-time", "60", f"http://127.0.0.1:{port}/metrics"]
    if cluster.node is not None:
        command = cluster.node.within(*command)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout


def turns(cluster: Cluster, port: int) -> float:
    found = re.findall(r'^rljob_operator_reconcile_seconds_count\{result="ok"\} (\S+)$', metrics(cluster, port), re.M)
    return float(found[0]) if found else 0.0


def is_calm(cluster: Cluster, port: int) -> bool:
    """Whether a turn has ended, and none writes anything for a while: what was made is news for some turns more."""
    if turns(cluster, port) == 0:
        return False
    before = writes(cluster, port)
    time.sleep(2)
    return writes(cluster, port) == before


def writes(cluster: Cluster, port: int) -> dict[str, float]:
    """Requests that change something, but for the lease."""
    row = re.compile(r'^rljob_operator_api_requests_total\{code="\d+",resource="(\w+)",verb="(\w+)"\} (\S+)$', re.M)
    reported = metrics(cluster, port)
    assert "rljob_operator_api_requests_total{" in reported, "the operator did not tell what it asked"
    found = row.findall(reported)
    return {f"{verb} {what}": float(n) for what, verb, n in found if verb in WRITES and what != "leases"}
