"""An edit that the API server takes and the operator refuses: the job goes on by the last spec, and says so.

A rank is killed under it, twice: by the operator that has seen the good spec, and by one that was started since.
"""

from pathlib import Path

import pytest

from rljob_api.cluster import config_name
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Cluster, Node
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, make_small_job, slowed

pytestmark = pytest.mark.timeout(900)

BAD = {"roles": {"actor": {"template": {"spec": {"containers": [{"name": "worker", "command": ["sleep"]}]}}}}}


def is_refused(job: ClusterJob) -> bool:
    return job.condition("Accepted").get("status") == "False"


def test_a_job_whose_edit_is_refused_is_supervised_by_the_last_spec(
    cluster: Cluster, node: Node, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    install_definition(cluster.kubeconfig)
    patient = {"heartbeatTimeoutSeconds": 60}
    job = ClusterJob(kubectl, slowed(make_small_job(rollout={"numRollouts": 5000}, restartPolicy=patient))).apply()
    with OperatorProcess(cluster, namespace, tmp_path) as operator:
        job.wait_epoch_ready(1)
        good = job.object()["metadata"]["generation"]
        before = kubectl.get("configmap", config_name(job.name))

        job.change(BAD)
        job.wait("the edit to be refused", lambda: is_refused(job))
        accepted = job.condition("Accepted")
        assert accepted["reason"] == job.status()["reason"] == "InvalidSpec"
        assert accepted["message"].startswith("roles.actor.template.spec.containers[worker].command: cannot be")
        assert f"goes on by the spec of generation {good}" in accepted["message"]
        assert (accepted["observedGeneration"], job.status()["observedGeneration"]) == (good + 1, good + 1)
        assert (job.status()["phase"], job.is_true("Ready")) == ("Running", True)

        job.process("actor").kill()
        job.wait_epoch_ready(2)
        assert is_refused(job)

        operator.kill()
        job.process("actor").kill()
        operator.start()
        job.wait_epoch_ready(3)
        assert is_refused(job)
        assert job.status()["restart"]["globalRestarts"] == 2, job.summary()
        assert kubectl.get("configmap", config_name(job.name)) == before
        assert len(job.events("InvalidSpec")) == 1

        job.change({"roles": {"actor": {"template": {"spec": {"containers": None, "hostNetwork": "true"}}}}})
        job.wait("the API server's words", lambda: job.condition("Accepted").get("reason") == "ObjectRefused")
        assert "hostNetwork" in job.condition("Accepted")["message"]
        assert job.is_true("Ready"), "what it would never take does not take the pods away"

        job.change({"roles": {"actor": {"template": None}}, "activeDeadlineSeconds": 100_000})
        job.wait_true("Accepted")
        assert job.status()["observedGeneration"] == good + 3
        step = job.step()
        job.wait_step(step + 1)
        assert job.epoch() == 3, job.summary()
