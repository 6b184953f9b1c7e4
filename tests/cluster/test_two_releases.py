"""Two releases of the operator over one namespace, and a definition that goes and comes, against a real API server."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import REPOSITORY, Cluster, workload_options
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import leaves_nothing

pytestmark = pytest.mark.timeout(900)

POLICY = "shared-workers"
CLAIM = "jobs.rljob.dev"


@pytest.fixture(autouse=True)
def crd(cluster: Cluster) -> None:
    install_definition(cluster.kubeconfig)


def release(cluster: Cluster, namespace: str, folder: Path, name: str) -> OperatorProcess:
    """One whose policies of a job are like no other release's."""
    lease = {"name": name, "namespace": namespace}
    workloads = {**workload_options(), "scraperNamespace": f"of-{name}"}
    return OperatorProcess(cluster, namespace, folder / name, lease=lease, workloads=workloads)


def apply_suspended(kubectl: Kubectl, name: str) -> None:
    job: Object = yaml.safe_load((REPOSITORY / "examples/quickstart.yaml").read_text())
    job["metadata"]["name"] = name
    job["spec"]["suspend"] = True
    kubectl.apply(leaves_nothing(job))


def wait_accepted(kubectl: Kubectl, name: str) -> None:
    def accepted(job: Object) -> bool:
        conditions = job.get("status", {}).get("conditions", [])
        return any((each["type"], each["status"]) == ("Accepted", "True") for each in conditions)

    kubectl.wait_for("rljob", name, "to be accepted", accepted)


def events(kubectl: Kubectl, reason: str) -> list[dict[str, Any]]:
    return [event for event in kubectl.all("events") if event["reason"] == reason]


def test_the_second_release_leaves_the_jobs_of_the_first_alone_and_states_it(
    cluster: Cluster, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    first, second = (release(cluster, namespace, tmp_path, name) for name in ("first", "second"))
    with first:
        apply_suspended(kubectl, "shared")
        made = kubectl.wait_for("networkpolicy", POLICY, "to be there", lambda found: found)
        wait_accepted(kubectl, "shared")
        with second:
            kubectl.wait("the second release to say so", lambda: events(kubectl, "OtherOperator"))
            kubectl.merge("rljob", "shared", {"spec": {"ttlSecondsAfterFinished": 77}})
            kubectl.wait_for(
                "rljob",
                "shared",
                "to have been looked at",
                lambda job: job["status"].get("observedGeneration") == job["metadata"]["generation"],
            )
            found = kubectl.get("networkpolicy", POLICY)
            assert second.exit_code is None, second.tail()
    assert found is not None
    assert found["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert ": applied " not in second.log.read_text()
    lease = kubectl.get("lease", CLAIM)
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == f"{namespace}/first"


@pytest.mark.long
def test_a_release_that_is_gone_is_followed_by_the_other_one(
    cluster: Cluster, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    first, second = (release(cluster, namespace, tmp_path, name) for name in ("first", "second"))
    with ExitStack() as stack:
        with first:
            apply_suspended(kubectl, "shared")
            wait_accepted(kubectl, "shared")
            stack.enter_context(second)
            kubectl.wait("the second release to say so", lambda: events(kubectl, "OtherOperator"))
        kubectl.wait_for(
            "networkpolicy", POLICY, "to be the second release's", lambda found: "of-second" in str(found), seconds=300
        )
        second_claims = kubectl.get("lease", CLAIM)
        assert second_claims is not None
        assert second_claims["spec"]["holderIdentity"] == f"{namespace}/second"


@pytest.mark.long  # with the definition every job of the cluster goes
def test_jobs_are_watched_again_after_their_definition_was_deleted_and_applied(
    cluster: Cluster, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    with OperatorProcess(cluster, namespace, tmp_path / "operator") as operator:
        apply_suspended(kubectl, "before")
        wait_accepted(kubectl, "before")
        kubectl("delete", "crd", "rljobs.rljob.dev", seconds=120)
        kubectl.wait("the operator to notice", lambda: "apply the CRD" in operator.log.read_text())
        install_definition(cluster.kubeconfig)
        kubectl.wait("the watch to go on", lambda: "rljobs" in went_on(operator))
        apply_suspended(kubectl, "after")
        wait_accepted(kubectl, "after")
        assert operator.exit_code is None, operator.tail()


def went_on(operator: OperatorProcess) -> str:
    return "\n".join(line for line in operator.log.read_text().splitlines() if "goes on again" in line)
