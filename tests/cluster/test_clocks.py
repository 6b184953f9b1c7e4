"""Operators on machines whose clocks are an hour wrong, one after the other: the job goes by the API server's."""

import re
import tempfile
from pathlib import Path

import pytest

from rljob_api.times import seconds
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import Cluster, idle_workload_options
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, make_small_job

pytestmark = pytest.mark.timeout(600)
HOUR = 3600.0
NOWHERE = {"spec": {"nodeSelector": {"example.org/none": "none"}}}


def moments(status: Object) -> list[float]:
    """All that the operator has written into it."""
    return [seconds(text) for text in re.findall(r"\d{4}-\d\d-\d\dT[\d:.]+Z", str(status))]


def test_no_limit_of_a_job_is_over_for_a_leader_whose_clock_is_wrong(
    cluster: Cluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Its pods wait for a node, and its workers sleep. Else the second leader would fail it at once."""
    install_definition(cluster.kubeconfig)
    manifest = make_small_job(roles={"rollout": {"template": NOWHERE}})
    manifest["spec"] |= {"activeDeadlineSeconds": 1800, "startupDeadlineSeconds": 1800}
    job = ClusterJob(kubectl, manifest)
    with tempfile.TemporaryDirectory(prefix="rljob-idle-") as idle:
        workloads = idle_workload_options(Path(idle))
        operator = OperatorProcess(cluster, kubectl.namespace, tmp_path, workloads=workloads)
        with operator.ahead(-HOUR):
            job.apply()
            job.wait(
                "the first leader to name the wait", lambda: job.condition("Ready").get("reason") == "Unschedulable"
            )
        with operator.ahead(HOUR):
            job.change({"activeDeadlineSeconds": 2000})
            generation = job.object()["metadata"]["generation"]
            job.wait("a turn of the second leader", lambda: job.status().get("observedGeneration") == generation)
            status, made_at = job.status(), seconds(job.object()["metadata"]["creationTimestamp"])

    assert status["phase"] == "Starting", job.summary()
    written = moments(status)
    assert written
    assert all(made_at - 10 < at < made_at + 1800 for at in written), status
    stamped = [seconds(event["eventTime"]) for event in job.events()]
    assert stamped
    assert all(made_at - 10 < at < made_at + 1800 for at in stamped), job.summary()
    log = operator.log.read_text()
    for sentence in ("is 3600 s behind that of the API server", "is 3600 s ahead of that of the API server"):
        assert f"the clock of this machine {sentence}, by which the operator goes" in log, operator.tail()
