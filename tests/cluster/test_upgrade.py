"""A job runs on while its operator is replaced by another version, and while that is taken back.

Its pods run the release that began it. The CRD is today's all the time: the cluster is shared with other tests, and
after a rollback of the operator it is today's as well.
"""

import json
import os
from pathlib import Path

import pytest

from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.earlier import check_out
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Cluster, Node
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, gated_rewards, make_job, slowed

RELEASE = "0.1.0"
COMPONENTS = ("worker", "coordinator", "control", "storage")
PATIENCE_SECONDS = 180.0

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    try:
        return check_out(RELEASE, tmp_path / "release")
    except LookupError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


def test_an_upgrade_and_a_rollback_touch_no_pod_of_a_running_job(
    cluster: Cluster, node: Node, kubectl: Kubectl, namespace: str, tmp_path: Path, release: Path
) -> None:
    install_definition(cluster.kubeconfig)
    with gated_rewards() as gate:
        policy = {"heartbeatTimeoutSeconds": 60}
        manifest = make_job(rollout={"numRollouts": 120}, restartPolicy=policy)
        job = ClusterJob(kubectl, slowed(manifest, "gated", gate)).apply()
        with OperatorProcess(cluster, namespace, tmp_path / "first", sources=release):
            job.wait_epoch_ready(1, seconds=PATIENCE_SECONDS)
            began = standing(job)
            assert all(str(release / "workers") in json.dumps(pod["spec"]) for pod in job.pods())
        with OperatorProcess(cluster, namespace, tmp_path / "upgraded"):
            restart_a_rank(job, 1)
            assert standing(job) == began
        with OperatorProcess(cluster, namespace, tmp_path / "back", sources=release):
            restart_a_rank(job, 2)
            assert standing(job) == began
            (gate / "go").touch()
            report = job.assert_succeeded(seconds=PATIENCE_SECONDS)
    assert report.problems == []
    assert job.status()["restart"]["globalRestarts"] == 0


def standing(job: ClusterJob) -> tuple[int, dict[str, list[int]], dict[str, str]]:
    """The epoch, of each pod how often its containers were started again, and which version each workload has."""
    pods = [pod for component in COMPONENTS for pod in job.pods(component)]
    restarts = {
        pod["metadata"]["uid"]: [each["restartCount"] for each in pod["status"]["containerStatuses"]] for pod in pods
    }
    workloads = job.kubectl.all("deployment,statefulset", f"rljob.dev/job={job.name}")
    return job.epoch(), restarts, {each["metadata"]["uid"]: str(each["metadata"]["generation"]) for each in workloads}


def restart_a_rank(job: ClusterJob, failures: int) -> None:
    """Kills a rank that is started again in place: the operator is asked to decide, and its order is taken."""
    job.process("advantages").kill()

    def is_back() -> bool:
        row = next(row for row in job.status()["roles"] if row["name"] == "advantages")
        return bool(row["failures"] == failures and job.is_true("Ready"))

    job.wait(f"failure {failures} of advantages to be made good", is_back, seconds=PATIENCE_SECONDS)
