"""No one can ask a coordinator, since packets to it are lost: before the job starts, and while it trains.

The job says so within a minute, is not called well, keeps its epoch, and all is well again when packets come through.
"""

import sys
import time
from collections.abc import Iterator

import pytest

from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.filter import GROUP, Cut
from tests.cluster.harness.kubectl import Kubectl, is_ready
from tests.cluster.harness.machine import Cluster, Node
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, make_small_job, slowed

LIMIT_SECONDS = 30

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="module")
def job(cluster: Cluster, module_kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterJob]:
    """Made while its operator is cut off from all coordinators."""
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: nobody can lose its packets")
    install_definition(cluster.kubeconfig)
    policy = {"heartbeatTimeoutSeconds": LIMIT_SECONDS}
    manifest = slowed(make_small_job(rollout={"numRollouts": 5000}, restartPolicy=policy))
    operator = OperatorProcess(cluster, module_kubectl.namespace, tmp_path_factory.mktemp("operator"))
    with Cut(cluster.node) as cut, operator.in_group(GROUP):
        job = ClusterJob(module_kubectl, manifest).apply()
        job.wait("a coordinator that its kubelet calls ready", lambda: any(map(is_ready, job.pods("coordinator"))))
        assert_reported(job, 1)
        job.wait("Ready to say why", lambda: job.condition("Ready").get("reason") == "CoordinatorUnreachable")
        ready = job.condition("Ready")
        assert ready["status"] == "False"
        assert "the epoch is not open yet" in ready["message"]
        assert (job.status()["phase"], job.status()["restart"].get("opened", 0)) == ("Starting", 0)
        cut.end()
        job.wait_epoch_ready(1)
        yield job


def assert_reported(job: ClusterJob, times: int) -> None:
    """It is reported once more, for the so many-th time; when and what is in the test's output.

    Not by another reason: a pod that took long to start is reported as one that is down, until a moment after it is up.
    """
    began = time.monotonic()
    job.wait("CoordinatorReachable to be False", lambda: is_cut_off(job))
    row = job.condition("CoordinatorReachable")
    sys.stdout.write(f"told after {time.monotonic() - began:.1f} s: {row['message']}\n")
    assert f"asks the coordinator: GET http://{job.name}-coordinator.{job.kubectl.namespace}.svc" in row["message"]
    assert "/v1/status: no " in row["message"]
    event = job.wait_event("CoordinatorUnreachable", times)
    assert event["type"] == "Warning"
    assert event["note"].partition(": no ")[0] == row["message"].partition(": no ")[0]


def is_cut_off(job: ClusterJob) -> bool:
    row = job.condition("CoordinatorReachable")
    return (row.get("status"), row.get("reason")) == ("False", "CoordinatorUnreachable")


def test_a_job_that_was_never_reached_starts_by_itself_when_it_is(job: ClusterJob) -> None:
    assert job.condition("CoordinatorReachable")["status"] == "True"
    assert job.status()["phase"] == "Running"
    assert job.status()["restart"]["globalRestarts"] == 0
    job.wait_step(1)


def test_a_job_that_is_lost_in_the_middle_is_unknown_goes_on_and_is_well_again(job: ClusterJob, node: Node) -> None:
    pods = {pod["metadata"]["uid"] for pod in job.pods()}
    reported = {event["reason"] for event in job.events()}
    with Cut(node):
        assert_reported(job, 2)
        job.wait("phase Unknown", lambda: job.status()["phase"] == "Unknown", seconds=LIMIT_SECONDS + 15)
        assert (job.condition("Ready")["status"], job.status()["reason"]) == ("Unknown", "CoordinatorUnreachable")
        # Everybody has been silent for longer than the limit. One more turn, to which a live field is the occasion: the
        # operator reports the generation in the status that it has decided on.
        job.change({"activeDeadlineSeconds": 100_000})
        job.wait_seen()
        assert is_cut_off(job)
        assert job.epoch() == 1, job.summary()
        step = job.step()
    job.wait("the condition to be True again", lambda: not is_cut_off(job))
    job.wait_true("Ready")
    assert job.status()["phase"] == "Running"
    job.wait_step(step + 2)
    assert (job.epoch(), job.status()["restart"]["globalRestarts"]) == (1, 0), job.summary()
    assert {pod["metadata"]["uid"] for pod in job.pods()} == pods
    job.wait_event("CoordinatorReachable", 2)  # the same sentence as at the start
    news = {event["reason"] for event in job.events()} - reported
    assert news <= {"CoordinatorUnreachable", "CoordinatorReachable", "Ready"}, job.summary()
