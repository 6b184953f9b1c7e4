"""The real SGLang in a pod: imported by the pod that forks it, killed process by process, and the job goes on."""

from pathlib import Path

import pytest

from rljob_api.names import Role
from tests.cluster.harness import processes
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.processes import Kind, Process
from tests.cluster.harness.rljob import ClusterJob, make_small_job

ROLLOUT = Role.ROLLOUT.value

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.long
def test_a_job_of_two_servers_of_sglang_bears_the_death_of_one(
    cluster: Cluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    install_definition(cluster.kubeconfig)
    roles = {"rollout": {"ranksPerPod": 2, "engine": {"kind": "SGLang"}}}
    patience = {"heartbeatTimeoutSeconds": 60, "stallTimeoutSeconds": 300}
    manifest = make_small_job(roles=roles, rollout={"numRollouts": 120}, restartPolicy=patience)
    job = ClusterJob(kubectl, manifest)
    with OperatorProcess(cluster, kubectl.namespace, tmp_path, lease=None):
        job.apply()
        job.wait_true("Ready")
        engines: list[Process] = []

        def find() -> bool:
            running = processes.of_container(kubectl, job.pod_of(ROLLOUT), "worker")
            engines[:] = [process for process in running if process.kind is Kind.ENGINE]
            return len(engines) == 6

        job.wait("two servers of three processes each", find)
        engines[0].kill()  # the first of its group: the server
        reported = job.wait_event("EngineExited")
        assert "of rollout-0" in reported["note"]
        job.assert_succeeded()
        assert job.epoch() == 1
