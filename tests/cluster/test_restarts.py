"""The restart table on a cluster: one job, on which everything is killed, deleted or frozen that can be, one by one.

Each blow must lead to what the table says and to nothing else: one restart for one cause, no one else's processes
touched. At the end the job succeeds and has trained every sample exactly once. One blow of each cause that is the
cluster's is in `make test`: every role with every cause is in tests/unit/core/test_restart.py.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from rljob_api.cluster import (
    COMPONENT_CONTROL,
    COMPONENT_COORDINATOR,
    COMPONENT_STORAGE,
)
from rljob_api.names import Role
from rljob_cli.jobs.sample_log import read_lines
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, is_ready
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.processes import Kind
from tests.cluster.harness.rljob import ClusterJob, make_job, slowed
from tests.cluster.harness.subject import GLOBAL, IN_PLACE, Standing, Subject

LAUNCHER_LOST, RANK_EXITED = "LauncherLost", "RankExited"
HEARTBEAT_SECONDS = 20
"""A frozen launcher is noticed well before the kubelet, whose probe is patient for half a minute, starts it again."""

pytestmark = pytest.mark.timeout(1200)


@dataclass(frozen=True)
class Blow:
    """Something bad, and the one decision that it must lead to."""

    strike: Callable[[Subject], None]
    reason: str
    action: str
    """The scope of the restart."""
    role: Role
    counts: bool = True
    replaced: bool | None = False
    """Another pod takes its place; None: it may, where the kubelet is slow to report that the container has ended."""


@pytest.fixture(scope="module")
def subject(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: its processes cannot be killed")
    install_definition(cluster.kubeconfig)
    namespace = f"restarts-{time.monotonic_ns() % 10**9:x}"
    kubectl = Kubectl(cluster.kubeconfig, namespace)
    kubectl("create", "namespace", namespace)
    manifest = make_job(
        rollout={"numRollouts": 1_000_000},
        restartPolicy={
            "threshold": 1000,
            "maxGlobalRestarts": 1000,
            "heartbeatTimeoutSeconds": HEARTBEAT_SECONDS,
            "backoff": {"initialSeconds": 0},
        },
    )
    folder = tmp_path_factory.mktemp("operator")
    try:
        kubectl.wait("the namespace's service account", lambda: kubectl.get("serviceaccount", "default"))
        # Without a lease, which it would lose on a busy machine: no one starts this operator again.
        with OperatorProcess(cluster, namespace, folder, lease=None) as operator:
            subject = Subject(ClusterJob(kubectl, slowed(manifest, "slower")).apply(), operator)
            subject.wait_ready()
            subject.train_on()
            yield subject
    finally:
        kubectl.delete("namespace", namespace)


def rank_of(role: Role) -> Callable[[Subject], None]:
    return lambda subject: subject.job.process(role.value).kill()


def container_of(role: Role) -> Callable[[Subject], None]:
    return lambda subject: subject.job.process(role.value, Kind.FIRST).kill()


def pod_of(role: Role) -> Callable[[Subject], None]:
    return lambda subject: subject.job.kubectl.delete("pod", subject.job.pod_of(role.value))


def frozen(role: Role, kind: Kind) -> Callable[[Subject], None]:
    return lambda subject: subject.job.process(role.value, kind).pause()


TABLE = {
    Role.ROLLOUT: GLOBAL,
    Role.ACTOR: GLOBAL,
    Role.ACTOR_FWD: GLOBAL,
    Role.REFERENCE: IN_PLACE,
    Role.ADVANTAGES: IN_PLACE,
}

BLOWS = [
    *(
        pytest.param(
            Blow(rank_of(r), RANK_EXITED, TABLE[r], r),
            id=f"a rank of {r.value} is killed",
            marks=() if r is Role.REFERENCE else pytest.mark.long,
        )
        for r in TABLE
    ),
    *(
        pytest.param(
            Blow(container_of(r), LAUNCHER_LOST, TABLE[r], r, replaced=None),
            id=f"the first process of {r.value} is killed",
            marks=() if r is Role.ACTOR else pytest.mark.long,
        )
        for r in TABLE
    ),
    *(
        pytest.param(
            Blow(pod_of(r), "PodDeleted", TABLE[r], r, counts=False, replaced=True),
            id=f"a pod of {r.value} is deleted",
            marks=() if r is Role.REFERENCE else pytest.mark.long,
        )
        for r in (Role.ACTOR, Role.REFERENCE)
    ),
    pytest.param(
        Blow(frozen(Role.ACTOR_FWD, Kind.RANK), "Hang", GLOBAL, Role.ACTOR_FWD),
        id="a rank of actor_fwd is frozen",
        marks=pytest.mark.long,
    ),
    pytest.param(
        Blow(frozen(Role.ADVANTAGES, Kind.RANK), "Hang", IN_PLACE, Role.ADVANTAGES),
        id="a rank of advantages is frozen",
        marks=pytest.mark.long,
    ),
    pytest.param(
        Blow(frozen(Role.REFERENCE, Kind.FIRST), LAUNCHER_LOST, IN_PLACE, Role.REFERENCE, replaced=True),
        id="the launcher of reference is frozen",
        marks=pytest.mark.long,
    ),
]


@pytest.mark.parametrize("blow", BLOWS)
def test_one_cause_makes_one_restart_as_the_table_states(subject: Subject, blow: Blow) -> None:
    before = subject.standing()

    blow.strike(subject)
    subject.await_reported(blow.reason, blow.action, before)
    subject.wait_ready()
    subject.train_on()

    after, role = subject.since(before), blow.role.value
    message = subject.job.summary
    news = after.reported - before.reported
    assert {key: n for key, n in news.items() if key[1] != "Decide"} == {(blow.reason, blow.action): 1}, message()
    assert after.restarts - before.restarts == after.epoch - before.epoch == (blow.action == GLOBAL), message()
    assert after.counted - before.counted == (blow.action == GLOBAL and blow.counts), message()
    if blow.action == GLOBAL:
        assert not after.failures.total(), message()
        assert not set(before.ranks.values()) & set(after.ranks.values()), message()
    else:
        assert after.failures - before.failures == Counter({role: 1} if blow.counts else {}), message()
        assert {each for each, incarnation in after.ranks.items() if incarnation != before.ranks[each]} == {role}, (
            message()
        )
    changed = {each for each, uid in after.pods.items() if uid != before.pods[each]}
    assert changed in _allowed(blow), message()


def _allowed(blow: Blow) -> list[set[str]]:
    """Roles with another pod afterwards."""
    none: set[str] = set()
    return {None: [none, {blow.role.value}], True: [{blow.role.value}], False: [none]}[blow.replaced]


def coordinator(subject: Subject) -> None:
    subject.job.infrastructure(COMPONENT_COORDINATOR).kill()


def control(subject: Subject) -> None:
    subject.job.infrastructure(COMPONENT_CONTROL).kill()


def storage_unit(subject: Subject) -> None:
    subject.job.infrastructure(COMPONENT_STORAGE).kill()


def engine(subject: Subject) -> None:
    subject.job.process(Role.ROLLOUT.value, Kind.ENGINE).kill()


@pytest.mark.parametrize(
    ("strike", "reason"),
    [
        pytest.param(engine, "EngineExited", id="the engine is killed", marks=pytest.mark.long),
        pytest.param(coordinator, "InfrastructureRestarted", id="the coordinator is killed"),
        pytest.param(control, "InfrastructureRestarted", id="the control Redis is killed", marks=pytest.mark.long),
    ],
)
def test_what_is_no_role_comes_back_alone_and_does_not_count(
    subject: Subject, strike: Callable[[Subject], None], reason: str
) -> None:
    before = subject.standing()

    strike(subject)
    subject.await_reported(reason, "Decide", before)
    subject.train_on()

    after = subject.since(before)
    assert (after.reported - before.reported)[reason, "Decide"] == 1, subject.job.summary()
    assert after.ranks == before.ranks, subject.job.summary()
    assert_no_restart(subject, before, after)


def test_a_killed_storage_unit_costs_its_rows_and_at_most_one_restart(subject: Subject) -> None:
    """Rows that training had claimed cannot be made again within an epoch."""
    before = subject.standing()

    storage_unit(subject)
    subject.await_reported("InfrastructureRestarted", "Decide", before)
    subject.await_reported("StorageUnitLost", "Decide", before)
    subject.wait_ready()
    subject.train_on(4)

    after = subject.since(before)
    restarts = after.restarts - before.restarts
    assert restarts in (0, 1), subject.job.summary()
    assert (after.reported - before.reported)["RowsLost", GLOBAL] == restarts, subject.job.summary()


def test_the_control_redis_keeps_its_state_when_its_pod_is_deleted(subject: Subject) -> None:
    before = subject.standing()
    [old] = subject.job.pods(COMPONENT_CONTROL)

    subject.job.kubectl.delete("pod", old["metadata"]["name"])
    subject.job.kubectl.wait_for(
        "pod",
        old["metadata"]["name"],
        "to be another one, and Ready",
        lambda pod: pod["metadata"]["uid"] != old["metadata"]["uid"] and is_ready(pod),
    )
    subject.train_on()

    after = subject.since(before)
    assert after.ranks == before.ranks, subject.job.summary()
    assert_no_restart(subject, before, after)


def test_an_object_that_the_cluster_refuses_keeps_nothing_else_from_being_done(subject: Subject) -> None:
    kubectl, name = subject.job.kubectl, subject.job.name
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    kubectl.apply({**quota, "spec": {"hard": {"count/poddisruptionbudgets.policy": "0"}}})
    kubectl.wait_for("resourcequota", "none", "to be in force", lambda found: found.get("status", {}).get("hard"))
    kubectl.delete("poddisruptionbudget", name)
    reported = subject.job.wait_event("ObjectRefused")
    assert f"PodDisruptionBudget {name} was refused" in reported["note"]
    assert "exceeded quota: none" in reported["note"]
    before = subject.standing()

    rank_of(Role.ACTOR)(subject)
    subject.await_reported(RANK_EXITED, GLOBAL, before)
    subject.wait_ready()

    after = subject.since(before)
    assert after.restarts - before.restarts == 1, subject.job.summary()
    kubectl.delete("resourcequota", "none")
    kubectl.wait_for("poddisruptionbudget", name, "to be back", bool)


def assert_no_restart(subject: Subject, before: Standing, after: Standing) -> None:
    assert after.num_restarts() == before.num_restarts(), subject.job.summary()
    same = [(one.epoch, one.restarts, one.counted, one.failures, one.pods) for one in (before, after)]
    assert same[0] == same[1], subject.job.summary()


@pytest.mark.long
def test_the_third_failure_of_reference_since_the_last_global_restart_is_global(subject: Subject) -> None:
    subject.job.change({"restartPolicy": {"threshold": 3}})
    before = subject.standing()
    left = 3 - before.failures["reference"]
    assert left > 0, subject.job.summary()

    for nth in range(1, left + 1):
        now = subject.standing()
        rank_of(Role.REFERENCE)(subject)
        action = GLOBAL if nth == left else IN_PLACE
        subject.await_reported(RANK_EXITED, action, now)
        subject.wait_ready()

    after = subject.since(before)
    assert after.restarts - before.restarts == after.counted - before.counted == 1, subject.job.summary()
    assert not after.failures.total(), subject.job.summary()
    # A job that runs is asked for what a rank wrote that is dead by now.
    assert "==> reference-0.0 <==\n" in _logs(subject, "--role", "reference", "--previous")
    assert "[reference-0.0] " in _logs(subject, "--role", "reference")


def _logs(subject: Subject, *options: str) -> str:
    kubectl = subject.job.kubectl
    command = [sys.executable, "-m", "rljob_cli", "logs", subject.job.name, "-n", kubectl.namespace, *options]
    environment = {**os.environ, "KUBECONFIG": kubectl.kubeconfig}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_after_all_this_the_job_succeeds_and_has_trained_every_sample_exactly_once(subject: Subject) -> None:
    before = subject.standing()
    assert before.num_restarts() == subject.restarts, (
        f"restarts that no test above answers for: {subject.job.summary()}"
    )
    last = read_lines(subject.log())[-1].step
    subject.job.change({"rollout": {"numRollouts": last + 40}})  # it trains on until the operator has seen this
    subject.await_reported("SpecChanged", GLOBAL, before)

    report = subject.job.assert_succeeded()
    assert report.problems == []
