"""Four actor ranks in two pods of a cluster: one dies, one is frozen, a pod is deleted; each is one restart.

The pods that stay begin again along with the one that is new: ranks of one generation only meet each other. Ranks of
the backends Fsdp and Megatron meet within every micro-batch, where those that wait for the victim beat like it did.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from rljob_api.names import Role
from rljob_api.spec.roles import TrainerBackend
from tests.cluster.harness import processes
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.processes import Kind, Process
from tests.cluster.harness.rljob import ClusterJob, make_job, slowed
from tests.cluster.harness.subject import Subject

pytestmark = pytest.mark.timeout(1200)
ACTOR = Role.ACTOR.value
LAYOUTS = {"Megatron": {"parallelism": {"tensor": 2, "pipeline": 2}}}
"""A model over both pods, each with a stage."""


@pytest.fixture
def subject(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Subject]:
    """A job whose actor has the backend that the test names."""
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: its processes cannot be killed")
    install_definition(cluster.kubeconfig)
    namespace = f"gangs-{time.monotonic_ns() % 10**9:x}"
    kubectl = Kubectl(cluster.kubeconfig, namespace)
    kubectl("create", "namespace", namespace)
    manifest = make_job(
        rollout={"numRollouts": 1_000_000},
        training={"microBatchSize": 4},
        roles={ACTOR: {"replicas": 2, "ranksPerPod": 2, "backend": request.param, **LAYOUTS.get(request.param, {})}},
        checkpoint={"volume": {"size": "1Gi", "accessMode": "ReadWriteMany"}},
        restartPolicy={"heartbeatTimeoutSeconds": 20, "stallTimeoutSeconds": 240},
    )
    try:
        kubectl.wait("the namespace's service account", lambda: kubectl.get("serviceaccount", "default"))
        # Without a lease, which it would lose on a busy machine: no one starts this operator again.
        with OperatorProcess(cluster, namespace, tmp_path_factory.mktemp("operator"), lease=None) as operator:
            subject = Subject(ClusterJob(kubectl, slowed(manifest, "slower")).apply(), operator)
            subject.wait_ready()
            subject.train_on()
            yield subject
    finally:
        kubectl.delete("namespace", namespace)


@dataclass(frozen=True)
class Blow:
    """Something bad, and the reason of the one restart that follows."""

    strike: Callable[[Subject], None]
    reason: str
    who: str
    """How its sentence begins."""


def rank(subject: Subject, replica: int, number: int) -> Process:
    found = processes.of_container(subject.job.kubectl, subject.job.pod_of(ACTOR, replica), "worker")
    return processes.the(found, Kind.RANK, number)


KILL = Blow(lambda subject: rank(subject, 1, 1).kill(), "RankExited", "actor-1.1 was killed by SIGKILL")
FREEZE = Blow(lambda subject: rank(subject, 0, 0).pause(), "Hang", "actor-0.0 has not beaten")
DELETE = Blow(
    lambda subject: subject.job.kubectl.delete("pod", subject.job.pod_of(ACTOR, 1)),
    "PodDeleted",
    "pod actor-1 was deleted",
)
BLOWS = {
    TrainerBackend.FLAT: (KILL, FREEZE, DELETE),
    TrainerBackend.MEGATRON: (KILL, FREEZE, DELETE),
    TrainerBackend.FSDP: (
        KILL,
        FREEZE,
        Blow(lambda subject: rank(subject, 0, 1).pause(), "Hang", "actor-0.1 has not beaten"),
        Blow(lambda subject: rank(subject, 1, 0).kill(), "RankExited", "actor-1.0 was killed by SIGKILL"),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("subject", "backend"),
    [
        pytest.param("Flat", TrainerBackend.FLAT, id="Flat"),
        pytest.param("Fsdp", TrainerBackend.FSDP, id="Fsdp"),
        pytest.param("Megatron", TrainerBackend.MEGATRON, id="Megatron"),
    ],
    indirect=["subject"],
)
def test_each_fault_of_a_gang_is_one_restart_that_names_it(subject: Subject, backend: TrainerBackend) -> None:
    for number, blow in enumerate(BLOWS[backend], start=1):
        blow.strike(subject)
        subject.wait("a restart", lambda wanted=number + 1: subject.job.epoch() == wanted)  # type: ignore[misc] # bound per turn
        restart = subject.job.status()["restart"]
        assert restart["reason"] == blow.reason, subject.job.summary()
        assert restart["message"].startswith(blow.who), subject.job.summary()
        subject.wait_ready()
        subject.train_on()
        assert subject.job.epoch() == number + 1, subject.job.summary()
        roles = {row["name"]: row for row in subject.job.status()["roles"]}
        assert len({pod["generation"] for pod in roles[ACTOR]["pods"]}) == 1, subject.job.summary()

    last = subject.job.step()
    subject.job.change({"rollout": {"numRollouts": last + 40}})
    assert subject.job.assert_succeeded().problems == []
