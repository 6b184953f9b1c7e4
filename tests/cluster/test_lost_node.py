"""A node is lost, with its kubelet, its network and its pods, as if its power had failed: no one says goodbye.

A second real node of this machine runs some roles of one job, and all of another one. Both go on, on the node that
is left, and have trained every sample exactly once.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rljob_api.names import Role
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import FIRST, SECOND, Cluster, Node, workload_options
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, gated_rewards, make_job, slowed
from tests.cluster.harness.subject import GLOBAL, Standing, Subject

AWAY = (Role.ACTOR, Role.ROLLOUT, Role.REFERENCE)
"""Roles of the one job that run on the second node; its infrastructure does not."""

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@dataclass(frozen=True)
class Loser:
    """A job that loses a node, and how it was before."""

    subject: Subject
    before: Standing
    gone: frozenset[str]
    """Its pods (uid) that are lost."""
    stays: frozenset[str]
    """Its other pods."""

    def restarts(self) -> Counter[tuple[str, str]]:
        """Restarts of the whole job since then."""
        reported = self.subject.reported() - self.before.reported
        return Counter({key: count for key, count in reported.items() if key[1] == GLOBAL})


@dataclass(frozen=True)
class Loss:
    """The jobs of a node that was lost."""

    some: Loser
    """Loses three roles; all nodes share the storage of its checkpoints."""
    whole: Loser
    """Loses everything; one node at a time may mount its checkpoints."""


@pytest.fixture(scope="module")
def gate() -> Iterator[Path]:
    with gated_rewards() as folder:
        yield folder


@pytest.fixture(scope="module")
def second(cluster: Cluster) -> Iterator[Node]:
    """The node of this machine, with a second one beside it while these tests run."""
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: it cannot be given a second node, to lose it")
    cluster.node.second("add")
    yield cluster.node
    cluster.node.second("remove")


@pytest.fixture(scope="module")
def loss(cluster: Cluster, second: Node, gate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loss]:
    """Both jobs train, then the node is lost."""
    install_definition(cluster.kubeconfig)
    text, folder = f"lost-{time.monotonic_ns() % 10**9:x}", tmp_path_factory.mktemp("operators")
    some, whole = (Kubectl(cluster.kubeconfig, f"{text}-{which}") for which in ("some", "whole"))
    try:
        for each in (some, whole):
            make_namespace(each)
        with operator(cluster, some, FIRST, folder) as one, operator(cluster, whole, SECOND, folder) as other:
            subjects = (Subject(spread(some, gate).apply(), one), Subject(together(whole, gate).apply(), other))
            for subject in subjects:
                subject.wait_ready()
                subject.train_on(3)
            losers = [
                Loser(each, each.standing(), pods_on(SECOND, each.job.kubectl), pods_on(FIRST, each.job.kubectl))
                for each in subjects
            ]
            second.second("lose")
            yield Loss(*losers)
    finally:
        for each in (some, whole):
            each("delete", "namespace", each.namespace, "--wait=false", "--ignore-not-found")


def make_namespace(kubectl: Kubectl) -> None:
    kubectl("create", "namespace", kubectl.namespace)
    kubectl.wait("the namespace's service account", lambda: kubectl.get("serviceaccount", "default"))


def operator(cluster: Cluster, kubectl: Kubectl, prefers: str, folder: Path) -> OperatorProcess:
    """An operator whose pods go to one node as long as that can be."""
    workloads = workload_options()
    template = workloads["podTemplate"]
    placed = {**template, "spec": {**template["spec"], "affinity": near(prefers)}}
    return OperatorProcess(
        cluster,
        kubectl.namespace,
        folder / kubectl.namespace,
        lease=None,
        workloads={**workloads, "podTemplate": placed},
        # The policies let the first node's processes at a coordinator of another one only if it may be the API server.
        coordinatorAccess="Proxy",
    )


def near(node: str) -> Object:
    """An affinity that prefers a node."""
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    term = {"weight": 100, "preference": {"matchExpressions": [expression]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}


def spread(kubectl: Kubectl, gate: Path) -> ClusterJob:
    shared = {"volume": {"size": "1Gi", "accessMode": "ReadWriteMany"}}
    early = {"coordinatorAbsenceSeconds": 10}  # before the cluster calls the node lost
    manifest = slowed(make_job(rollout={"numRollouts": 120}, checkpoint=shared, restartPolicy=early), "gated", gate)
    for role in AWAY:
        template = manifest["spec"]["roles"].setdefault(role.value, {}).setdefault("template", {})
        template.setdefault("spec", {})["affinity"] = near(SECOND)
    return ClusterJob(kubectl, manifest)


def together(kubectl: Kubectl, gate: Path) -> ClusterJob:
    return ClusterJob(kubectl, slowed(make_job(rollout={"numRollouts": 120}), "gated", gate))


def pods_on(node: str, kubectl: Kubectl) -> frozenset[str]:
    """Pods (uid) that are placed there."""
    return frozenset(pod["metadata"]["uid"] for pod in kubectl.all("pods") if pod["spec"].get("nodeName") == node)


def test_what_a_lost_node_costs_was_stated_when_the_job_was_accepted(loss: Loss) -> None:
    [reported] = loss.whole.subject.job.events("Durability")
    assert "ReadWriteOnce is not shared storage" in reported["note"]
    assert "a lost node takes the job down until the volume can be mounted elsewhere" in reported["note"]
    assert loss.some.subject.job.events("Durability") == []


def test_roles_of_a_lost_node_go_on_elsewhere_after_one_restart(loss: Loss) -> None:
    """Their silence is noticed before the cluster calls the node lost, and new pods are still placed there."""
    loser, job = loss.some, loss.some.subject.job
    assert len(loser.gone) == len(AWAY), job.summary()

    loser.subject.wait("a restart", lambda: bool(loser.restarts()))
    loser.subject.wait("nothing to be on the lost node", lambda: not pods_on(SECOND, job.kubectl))
    loser.subject.wait_ready()
    loser.subject.train_on()

    assert loser.restarts().total() == 1, job.summary()
    assert {reason for reason, _ in loser.restarts()} <= {"LauncherLost", "NodeLost"}, job.summary()
    now = loser.subject.standing()
    assert {role for role, uid in now.pods.items() if uid != loser.before.pods[role]} == set(AWAY), job.summary()


def test_a_job_that_was_on_the_lost_node_as_a_whole_goes_on_elsewhere(loss: Loss) -> None:
    """With its Redis and its coordinator; no one else lets go of pods that wait for ever for their kubelet."""
    loser, job = loss.whole, loss.whole.subject.job
    assert not loser.stays, job.summary()

    loser.subject.await_reported("NodeLost", GLOBAL, loser.before)
    loser.subject.wait("nothing to be on the lost node", lambda: not pods_on(SECOND, job.kubectl))
    loser.subject.wait_ready()
    loser.subject.train_on()

    now = loser.subject.standing()
    assert loser.restarts() == Counter({("NodeLost", GLOBAL): 1}), job.summary()
    assert now.counted == 0, job.summary()
    assert not set(now.pods.values()) & loser.gone, job.summary()


def test_both_jobs_have_trained_every_sample_exactly_once(loss: Loss, gate: Path) -> None:
    (gate / "go").touch()
    for loser in (loss.some, loss.whole):
        assert loser.subject.job.assert_succeeded().problems == []
