"""Whole jobs or none: ten jobs on two thirds of what they want, and never one that holds a part of what it needs.

Eight want five GPUs each of pretended nodes, whose pods run at once and do nothing: the end of such a job is its
deletion. Two have real launchers, two ranks in the actor's pod, and want three each of the real node's four. One of
that kind loses a rollout to an eviction, then its actor to a pod of a higher priority: it saves first, gives its pods
back as a whole, is placed again and goes on.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_operator.build.scheduling import MISSING_API
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.gangs import SCHEDULER, Watched, add_groups, add_pretended_nodes, add_scheduler, pretended
from tests.cluster.harness.gpus import asks_for, pretended_gpus
from tests.cluster.harness.hostpython import IMAGE
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import Cluster, Node
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, make_job, slowed

pytestmark = pytest.mark.timeout(900)

RESOURCE = "rljob.example/gang-gpu"
NODES = 3
GANG = {"gang": "PodGroup", "schedulerName": SCHEDULER}
GPUS = {"actor": 2, "rollout": 1, "actorFwd": 1}
"""Of a pod; with two rollouts a job needs 5: eight jobs want 40 where there are 24."""
PODS = 4 + 6
"""Coordinator, control Redis, two storage units; the roles', with two rollouts."""
REAL_PODS = 4 + 5
ROOM_FOR = 24 // 5
IN_PART_SECONDS = 5.0
"""From the first binding of a gang to its last: a request each, of a busy API server."""
WAIT_SECONDS = 330.0
STAYS_AWAY_SECONDS = 15.0
"""The scheduler looks again at what has no place after 10 s (tests/cluster/node/gang.sh)."""
SHARED = {"volume": {"size": "1Gi", "accessMode": "ReadWriteMany"}}
GROUP = "podgroups.scheduling.x-k8s.io"


@pytest.fixture
def nodes(cluster: Cluster, node: Node) -> Iterator[None]:
    """Pretended nodes; they go afterwards, so that nothing of other tests lands there."""
    install_definition(cluster.kubeconfig)
    add_pretended_nodes(NODES)
    yield
    Kubectl(cluster.kubeconfig)("delete", "node", "-l", "type=kwok", "--wait=false")


@pytest.fixture
def four_gpus(kubectl: Kubectl) -> Iterator[None]:
    """The real node says that it has four."""
    with pretended_gpus(kubectl, RESOURCE):
        yield


def pretended_job(name: str, scheduling: dict[str, Any]) -> Object:
    """Its pods tolerate pretended nodes, and no others. Volumes are the real nodes': it has none."""
    template = pretended()
    names = ("actor", "rollout", "actorFwd", "reference", "advantages")
    roles: dict[str, Any] = {role: {"template": template, "gpus": GPUS.get(role, 0)} for role in names}
    roles["rollout"]["replicas"] = 2
    roles["actor"]["template"] = {"spec": {**template["spec"], "volumes": [{"name": "run", "emptyDir": {}}]}}
    return make_job(
        name,
        roles=roles,
        training={"microBatchSize": 16},
        checkpoint=SHARED,
        transferQueue={"redis": {"persistence": {"kind": "EmptyDir"}}},
        scheduling=scheduling,
        infrastructure={"template": template},
    )


def real_job(name: str) -> Object:
    """It trains, and ends by itself."""
    return make_job(
        name,
        roles={"actor": asks_for(2, 2, RESOURCE), "rollout": asks_for(1, 1, RESOURCE), "reference": {}},
        training={"microBatchSize": 16},
        rollout={"numRollouts": 6},
        checkpoint=SHARED,
        restartPolicy={"heartbeatTimeoutSeconds": 60},
        scheduling=GANG,
    )


@pytest.mark.long
def test_a_gang_is_refused_with_a_sentence_until_the_cluster_has_groups(
    cluster: Cluster, kubectl: Kubectl, node: Node, tmp_path: Path
) -> None:
    install_definition(cluster.kubeconfig)
    kubectl("delete", "crd", GROUP, "--ignore-not-found")
    job = ClusterJob(kubectl, pretended_job("job", GANG))
    with OperatorProcess(cluster, kubectl.namespace, tmp_path) as operator:
        job.apply()
        job.wait("a refusal", lambda: job.status().get("reason") == "InvalidSpec")
        accepted = job.condition("Accepted")
        assert (accepted["status"], accepted["message"]) == ("False", MISSING_API)
        assert kubectl.all("pods") == []
        add_groups()
        kubectl.wait("the operator to begin anew", lambda: operator.exit_code is not None)
        assert operator.exit_code == 1
        operator.start()  # as its kubelet does
        job.wait("a group", lambda: kubectl.get(GROUP, "job"))
        job.wait_true("Accepted")


@pytest.mark.long
@pytest.mark.usefixtures("nodes", "four_gpus")
def test_ten_jobs_on_two_thirds_of_what_they_want_are_placed_as_wholes_and_all_end(
    cluster: Cluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    add_scheduler()
    names = [f"job-{number}" for number in range(8)]
    real = [ClusterJob(kubectl, real_job(f"real-{number}")) for number in range(2)]
    needs = dict.fromkeys(names, PODS) | dict.fromkeys((job.name for job in real), REAL_PODS)
    with OperatorProcess(cluster, kubectl.namespace, tmp_path), Watched(kubectl, needs) as watched:
        kubectl.apply(*(job.manifest for job in real), *(pretended_job(name, GANG) for name in names))
        waiting, training, most, began = set(names), list(real), 0, time.monotonic()
        while waiting or training:
            seconds = time.monotonic() - began
            assert seconds < WAIT_SECONDS, f"{waiting} {[job.name for job in training]}: {kubectl.describe()}"
            whole = {name for name in waiting if watched.is_whole(name)}
            most = max(most, len(whole))
            ended = [job for job in training if job.is_true("Succeeded")]
            watched.let_go(*(job.name for job in ended))
            training = [job for job in training if job not in ended]
            in_part = watched.longest_in_part()
            assert max(in_part.values()) < IN_PART_SECONDS, f"{in_part}\n{kubectl.describe()}"
            if whole:
                time.sleep(2)  # the length of a pretended job: nothing in it trains, and so long it holds what it has
                watched.let_go(*whole)
                kubectl("delete", "rljob", *whole, "--wait=false")
                waiting -= whole
        in_part = watched.longest_in_part()
    sys.stdout.write(f"{seconds:.0f} s; {most} pretended jobs at a time; in part for {max(in_part.values()):.2f} s\n")
    assert 1 <= most <= ROOM_FOR
    assert [watched.jobs[name].wholes for name in needs] == [1] * len(needs), "each was placed once"


@pytest.mark.long
@pytest.mark.usefixtures("nodes")
def test_without_gangs_the_same_jobs_hold_parts_of_what_they_need(
    cluster: Cluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    names = [f"job-{number}" for number in range(8)]
    with OperatorProcess(cluster, kubectl.namespace, tmp_path), Watched(kubectl, dict.fromkeys(names, PODS)) as watched:
        kubectl.apply(*(pretended_job(name, {}) for name in names))

        def in_part() -> bool:
            return max(watched.longest_in_part().values()) > IN_PART_SECONDS

        kubectl.wait("a job to be placed in part", in_part)
        kubectl("delete", "rljob", *names, "--wait=false")


@pytest.fixture
def priorities(kubectl: Kubectl) -> Iterator[tuple[str, str]]:
    """Two PriorityClasses, the lower one first."""
    names = (f"{kubectl.namespace}-low", f"{kubectl.namespace}-high")
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    kubectl.apply(*({**kind, "metadata": {"name": name}, "value": 1000 * n} for n, name in enumerate(names, start=1)))
    yield names
    kubectl("delete", "priorityclass", *names)


def gang_job(priority: str) -> Object:
    """Three GPUs, and checkpoints only where something else than its steps asks for one."""
    actor, rollout = asks_for(2, 2, RESOURCE), asks_for(1, 1, RESOURCE)
    actor["template"]["spec"]["terminationGracePeriodSeconds"] = 90
    manifest = make_job(
        roles={"actor": actor, "rollout": rollout, "reference": {}},
        training={"microBatchSize": 16},
        rollout={"numRollouts": 1_000_000},
        checkpoint={"everySteps": 100_000, **SHARED},
        restartPolicy={"heartbeatTimeoutSeconds": 60, "stallTimeoutSeconds": 240, "table": {"rollout": "InPlace"}},
        scheduling={
            "gang": "PodGroup",
            "schedulerName": SCHEDULER,
            "priorityClassName": priority,
            "releaseAfterSeconds": 5,
        },
    )
    template = slowed(manifest)["spec"]["roles"]["rollout"]["template"]
    slow = slowed(manifest)
    (container,) = template["spec"]["containers"]
    container["env"] = rollout["template"]["spec"]["containers"][0]["env"]
    slow["spec"]["roles"]["rollout"] = {**rollout, "template": template}
    return slow


def intruder(priority: str) -> Object:
    """A pod that needs three GPUs and does nothing."""
    container = {
        "name": "intruder",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/usr/bin/sleep", "3600"],
        "resources": {"limits": {RESOURCE: "3"}},
        "volumeMounts": [{"name": "usr", "mountPath": "/usr", "readOnly": True}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "intruder"},
        "spec": {
            "schedulerName": SCHEDULER,
            "priorityClassName": priority,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": "usr", "hostPath": {"path": "/usr"}}],
        },
    }


def checkpoint(job: ClusterJob) -> int:
    return int(job.status().get("training", {}).get("checkpoint") or 0)


def placed_workers(job: ClusterJob) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in job.pods()
        if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
    ]


def evict(kubectl: Kubectl, pod: str) -> None:
    """As a node that is drained does it."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": kubectl.namespace}}
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{pod}/eviction"
    kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))


@pytest.mark.long
@pytest.mark.usefixtures("four_gpus")
def test_a_preempted_gang_saves_waits_as_a_whole_and_resumes(
    cluster: Cluster, node: Node, kubectl: Kubectl, priorities: tuple[str, str], tmp_path: Path
) -> None:
    install_definition(cluster.kubeconfig)
    add_scheduler()
    low, high = priorities
    job = ClusterJob(kubectl, gang_job(low))
    with OperatorProcess(cluster, kubectl.namespace, tmp_path, lease=None):
        job.apply()
        job.wait_true("Ready")
        group = kubectl.get(GROUP, job.name)
        assert group is not None
        assert group["spec"] == {"minMember": 9}
        job.wait_step(2)

        evict(kubectl, job.pod_of("rollout"))
        job.wait_event("PodEvicted")
        job.wait("the rollout's successor", lambda: job.is_true("Ready"))
        job.wait_step(job.step() + 3)
        assert job.epoch() == 1, job.summary()
        assert checkpoint(job) == 0

        before = job.step()
        kubectl.apply(intruder(high))
        job.wait_event("PodPreempted")
        job.wait_event("GangReleased")
        job.wait("no worker to have a place", lambda: not placed_workers(job))
        saved = checkpoint(job)
        assert saved > before, f"it had trained rollout {before}: {job.summary()}"
        assert len(job.pods("control")) == 1
        kubectl.wait_ready("intruder")
        # Rounds of the scheduler in which one GPU is free, enough for the rollout alone.
        until = time.monotonic() + STAYS_AWAY_SECONDS
        while time.monotonic() < until:
            assert placed_workers(job) == []
            time.sleep(0.2)
        assert job.status()["restart"]["countedTowardsMax"] == 0

        kubectl.delete("pod", "intruder", force=True)
        job.wait_true("Ready")
        job.wait_step(saved + 2)
        job.change({"rollout": {"numRollouts": job.step() + 10}})
        report = job.assert_succeeded()
    assert report.problems == []
