"""Autoscaling on a cluster: a job whose engines are too slow, then its actor. Nothing is restarted, and it says why.

The tests go on with each other's job.
"""

import json
from collections.abc import Iterator

import pytest

from rljob_api.names import Role
from tests.brakes import Brake
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, KubectlFailed, Object, is_ready
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.processes import Kind
from tests.cluster.harness.rljob import ClusterJob, make_job

ROLLOUT = Role.ROLLOUT.value
SOON = {"minReplicas": 1, "maxReplicas": 2, "scaleUpAfterSeconds": 10, "scaleDownAfterSeconds": 10}

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="module")
def job(cluster: Cluster, module_kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterJob]:
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: its processes cannot be slowed down")
    install_definition(cluster.kubeconfig)
    manifest = make_job(
        rollout={"numRollouts": 1_000_000, "concurrency": 4},
        roles={"reference": {}, "rollout": {"autoscaling": SOON}},
        restartPolicy={"heartbeatTimeoutSeconds": 60, "stallTimeoutSeconds": 300},
    )
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(cluster, module_kubectl.namespace, folder, lease=None):
        job = ClusterJob(module_kubectl, manifest).apply()
        job.wait_true("Ready")
        yield job


def rollouts(status: Object) -> list[Object]:
    return next((role["pods"] for role in status.get("roles", []) if role["name"] == ROLLOUT), [])


def wait_rollouts(job: ClusterJob, count: int) -> None:
    """Until so many replicas are ready, and their pods say so too, and there are no others."""

    def settled() -> bool:
        ready = [pod["ready"] and not pod["draining"] for pod in rollouts(job.status())]
        return ready == [True] * count and [is_ready(pod) for pod in job.pods(role=ROLLOUT)] == ready

    job.wait(f"{count} rollout replicas", settled)


def refused(job: ClusterJob, *command: str) -> str:
    """What kubectl says of a command that is refused."""
    with pytest.raises(KubectlFailed) as message:
        job.kubectl(*command)
    return str(message.value)


def test_a_starved_actor_gets_another_replica_and_nothing_is_restarted(job: ClusterJob) -> None:
    assert [pod["name"] for pod in rollouts(job.status())] == ["rollout-0"]
    engine = job.process(ROLLOUT, Kind.ENGINE)

    with Brake(lambda: [engine.pid]):
        reported = job.wait_event("ScaledUp")
        wait_rollouts(job, 2)

    assert reported["note"].startswith("rollout scales from 1 to 2 replicas (in the last "), reported
    scaling = job.status()["scaling"]
    assert scaling["reason"] == "ActorStarved"
    assert scaling["message"] in reported["note"]
    assert scaling["lastDecision"]
    assert job.epoch() == 1, job.summary()


def test_another_scaler_is_refused(job: ClusterJob) -> None:
    sentence = "3 is not yours to give: with autoscaling RLJob sets the number itself, from 1 to 2"
    assert sentence in refused(job, "scale", f"rlj/{job.name}", "--replicas=3")
    patch = json.dumps({"spec": {"roles": {"rollout": {"replicas": 3}}}})
    assert sentence in refused(job, "patch", "rlj", job.name, "--type=merge", "--patch", patch)


def test_rollouts_that_are_ahead_drain_and_go(job: ClusterJob) -> None:
    stays, actor = job.pod_of(ROLLOUT, 0), job.process(Role.ACTOR.value, Kind.RANK)

    with Brake(lambda: [actor.pid]):
        job.wait_event("ScaledDown")
        wait_rollouts(job, 1)
        # Without the brake it would soon be starved again.
        assert [pod["metadata"]["name"] for pod in job.pods(role=ROLLOUT)] == [stays]
        assert job.status()["scaling"]["desired"] == 1

    reported = [event["note"] for event in job.events("ScaledDown")]
    assert reported[0].startswith("rollout scales from 2 to 1 replicas: rollout-1 drains (in the last "), reported
    assert reported[-1] == "rollout-1 has drained and goes"
    assert job.epoch() == 1, job.summary()


def test_without_autoscaling_a_scale_is_taken_again(job: ClusterJob) -> None:
    job.change({"roles": {"rollout": {"autoscaling": None}}})
    job.kubectl("scale", f"rlj/{job.name}", "--replicas=2")
    wait_rollouts(job, 2)

    assert job.epoch() == 1, job.summary()
    assert job.status()["scaling"].get("reason", "") == ""
