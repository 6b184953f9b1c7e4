"""Scaling on a cluster: one job whose rollouts come and go in mid-generation, as `kubectl scale` and an autoscaler ask.

The tests go on with each other's job. No one else's processes are touched, no ticket is lost: at the end the job
succeeds and has trained every sample exactly once.
"""

import json
from collections.abc import Iterator
from contextlib import suppress

import pytest

from rljob_api.cluster import API_GROUP, API_VERSION, LABEL_JOB, RLJOB_PLURAL
from rljob_api.names import Role
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, Object, is_ready
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.processes import Kind
from tests.cluster.harness.rljob import ClusterJob, leaves_nothing, make_small_job, slowed
from tests.cluster.harness.volumes import trained_steps

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
KINDS = "rljob,secret,configmap,service,persistentvolumeclaim,deployment,statefulset,networkpolicy,pod"
ROLLOUT = Role.ROLLOUT.value
FROZEN = {"heartbeatTimeoutSeconds": 120, "stallTimeoutSeconds": 600}
"""A frozen process must not count as hanging for as long as a test needs it frozen."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def job(cluster: Cluster, module_kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterJob]:
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: its processes cannot be paused")
    install_definition(cluster.kubeconfig)
    manifest = slowed(make_small_job(rollout={"numRollouts": 1_000_000}, restartPolicy=FROZEN), "slower")
    # A launcher is frozen, too, for as long as a test needs that, and not until its kubelet starts it again.
    (worker,) = manifest["spec"]["roles"][ROLLOUT]["template"]["spec"]["containers"]
    worker["livenessProbe"] = {"failureThreshold": 60}
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(cluster, module_kubectl.namespace, folder, lease=None):
        job = ClusterJob(module_kubectl, leaves_nothing(manifest)).apply()
        job.wait_true("Ready")
        yield job


def scale(job: ClusterJob, replicas: int) -> None:
    job.kubectl("scale", f"rlj/{job.name}", f"--replicas={replicas}")


def scale_of(job: ClusterJob) -> Object:
    """What a HorizontalPodAutoscaler reads."""
    path = f"/apis/{API_GROUP}/{API_VERSION}/namespaces/{job.kubectl.namespace}/{RLJOB_PLURAL}/{job.name}/scale"
    found: Object = json.loads(job.kubectl("get", "--raw", path))
    return found


def rollouts(status: Object) -> list[Object]:
    return next((role["pods"] for role in status.get("roles", []) if role["name"] == ROLLOUT), [])


def wait_rollouts(job: ClusterJob, count: int) -> None:
    """Until so many replicas are ready, and their pods say so too, and there are no others."""

    def settled() -> bool:
        status = job.status()
        ready = [pod["ready"] and not pod["draining"] for pod in rollouts(status)]
        is_quiet = any(c["type"] == "Ready" and c["status"] == "True" for c in status["conditions"])
        return is_quiet and ready == [True] * count and [is_ready(pod) for pod in job.pods(role=ROLLOUT)] == ready

    job.wait(f"{count} rollout replicas", settled)


def test_a_replica_joins_in_mid_generation_and_touches_no_one_else(job: ClusterJob) -> None:
    before = job.standing()

    scale(job, 2)
    wait_rollouts(job, 2)

    assert job.standing(without="rollout-1") == before, job.summary()
    assert job.kubectl("rollout", "status", f"deployment/{job.name}-rollout", "--timeout=100s")


def test_an_autoscaler_sees_the_replicas_and_finds_their_pods(job: ClusterJob) -> None:
    found = scale_of(job)

    assert (found["spec"]["replicas"], found["status"]["replicas"]) == (2, 2)
    named = {pod["metadata"]["name"] for pod in job.kubectl.all("pods", found["status"]["selector"])}
    assert named == {pod["metadata"]["name"] for pod in job.pods(role=ROLLOUT)}


def test_a_manifest_without_replicas_takes_nothing_back(job: ClusterJob) -> None:
    assert "rollout" not in job.manifest["spec"]["roles"] or "replicas" not in job.manifest["spec"]["roles"]["rollout"]

    job.apply()
    job.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(job.manifest))

    assert scale_of(job)["spec"]["replicas"] == 2
    generation = job.object()["metadata"]["generation"]
    job.wait("the operator to see it", lambda: job.status()["observedGeneration"] >= generation)
    assert len(rollouts(job.status())) == 2


def test_a_replica_that_drains_goes_on_when_it_is_wanted_again(job: ClusterJob) -> None:
    before, pods = job.standing(without="rollout-1"), uids(job)
    rank = job.process(ROLLOUT, Kind.RANK, replica=1)

    rank.pause()  # it cannot finish its drain
    try:
        scale(job, 1)
        job.wait(
            "rollout-1 to drain",
            lambda: [pod["draining"] for pod in rollouts(job.status())] == [False, True],
        )
        assert marked_pods(job) in ([], [job.pod_of(ROLLOUT, 1)])
        scale(job, 2)
        job.wait(
            "rollout-1 to be wanted again",
            lambda: [pod["draining"] for pod in rollouts(job.status())] == [False, False],
        )
    finally:
        with suppress(ProcessLookupError):  # its launcher ended it, since another incarnation is wanted
            rank.resume()
    wait_rollouts(job, 2)

    assert job.standing(without="rollout-1") == before, job.summary()
    assert uids(job) == pods
    job.wait("no pod to be marked", lambda: not marked_pods(job))


def test_the_highest_replica_drains_and_its_pod_goes(job: ClusterJob) -> None:
    before, stays = job.standing(without="rollout-1"), job.pod_of(ROLLOUT, 0)

    scale(job, 1)
    wait_rollouts(job, 1)

    assert [pod["metadata"]["name"] for pod in job.pods(role=ROLLOUT)] == [stays]
    assert job.standing() == before, job.summary()
    assert scale_of(job)["status"]["replicas"] == 1


@pytest.mark.long
def test_a_number_that_was_left_is_taken_by_another_pod(job: ClusterJob) -> None:
    before = job.standing()

    scale(job, 2)
    wait_rollouts(job, 2)
    scale(job, 1)
    wait_rollouts(job, 1)

    assert job.standing() == before, job.summary()


def test_no_one_joins_during_a_restart_and_then_it_is_done(job: ClusterJob) -> None:
    scale(job, 1)
    wait_rollouts(job, 1)
    epoch = job.epoch()
    launcher = job.process(ROLLOUT, Kind.FIRST)

    launcher.pause()  # it takes no order, so that the restart lasts
    try:
        job.restart_request()
        job.wait("the next epoch", lambda: job.epoch() == epoch + 1)
        scale(job, 2)
        job.wait("the wish to be seen", lambda: job.status()["scaling"]["desired"] == 2)
        assert len(rollouts(job.status())) == 1, job.summary()
        assert job.is_true("Restarting"), job.summary()
    finally:
        launcher.resume()
    wait_rollouts(job, 2)

    assert job.epoch() == epoch + 1, job.summary()


def test_after_all_this_the_job_succeeds_exactly_once_and_leaves_after_its_time(job: ClusterJob) -> None:
    epoch = job.epoch()
    last = trained_steps(job.kubectl, job.name) + 30  # it trains on until the operator has seen this
    job.change({"rollout": {"numRollouts": last}, "ttlSecondsAfterFinished": 3600})
    job.wait("the epoch with fewer rollouts", lambda: job.epoch() == epoch + 1)

    job.kubectl("wait", f"rlj/{job.name}", "--for=condition=Succeeded", "--timeout=420s", seconds=440)
    report = job.assert_succeeded()
    assert report.max_staleness <= 1
    job.kubectl.wait(
        "all pods to go, as cleanPodPolicy has it",
        lambda: not job.kubectl.all("pods", LABEL_JOB),
    )
    assert job.status()["phase"] == "Succeeded"

    job.change({"ttlSecondsAfterFinished": 1})
    job.kubectl.wait_gone("rljob", job.name)
    job.kubectl.wait("everything of it to go", lambda: not job.kubectl.all(KINDS, LABEL_JOB))


def marked_pods(job: ClusterJob) -> list[str]:
    """Those that the Deployment shall take first when it shrinks."""
    pods = job.pods(role=ROLLOUT)
    return [pod["metadata"]["name"] for pod in pods if DELETION_COST in pod["metadata"].get("annotations", {})]


def uids(job: ClusterJob) -> set[str]:
    return {pod["metadata"]["uid"] for pod in job.pods(role=ROLLOUT)}
