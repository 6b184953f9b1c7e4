"""The operator under faults, against a real API server and real jobs: killed at every write, paused, cut off, doubled.

Most deaths here are within the test's process (harness/lives.py): an operator's start costs seconds, and a job takes
some sixty writes from `kubectl apply` to Ready. Two tests kill and freeze real processes.
"""

import base64
import json
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rljob_api.cluster import ANNOTATION_APPLIED, LABEL_JOB, config_name, secret_name
from rljob_api.wire.epochs import EpochRequest
from rljob_operator.coordinator_client.link import CoordinatorRefused
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.door import Door
from tests.cluster.harness.incarnations import Incarnations
from tests.cluster.harness.kubectl import Kubectl, KubectlFailed, Object
from tests.cluster.harness.machine import Cluster, Node
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, leaves_nothing, make_small_job, slowed

pytestmark = pytest.mark.timeout(1200)  # every wait has its own deadline; together they take minutes on a busy machine

MADE = "secret,configmap,service,persistentvolumeclaim,deployment,statefulset,networkpolicy,poddisruptionbudget,pod"


@pytest.fixture(autouse=True)
def crd(cluster: Cluster) -> None:
    install_definition(cluster.kubeconfig)


def made_patient(name: str) -> Object:
    """A job that trains for long. No one here is found by silence: a busy machine's pause must not count as one."""
    policy = {"heartbeatTimeoutSeconds": 60}
    manifest = make_small_job(name, rollout={"numRollouts": 5000}, restartPolicy=policy, roles={"advantages": {}})
    return leaves_nothing(slowed(manifest))


def is_ready_in(epoch: int, raw: Object | None) -> bool:
    status = (raw or {}).get("status", {})
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    return bool(status.get("restart", {}).get("epoch") == epoch and conditions.get("Ready") == "True")


def step_of(raw: Object | None) -> int:
    step = (raw or {}).get("status", {}).get("training", {}).get("step")
    return -1 if step is None else int(step)


def worker_uids(job: ClusterJob) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in job.pods()}


@pytest.mark.long
# An incarnation that is killed leaves connections behind, which a busy machine closes later than the test ends.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_operator_that_dies_after_every_write_comes_to_the_same_end(
    cluster: Cluster, node: Node, kubectl: Kubectl, namespace: str
) -> None:
    job = ClusterJob(kubectl, made_patient("mortal")).apply()
    incarnations = Incarnations(cluster.kubeconfig, namespace, job.name)

    deaths = incarnations.die_at_every_write(lambda raw: is_ready_in(1, raw), seconds=600)
    kinds = {"Service", "ConfigMap", "PersistentVolumeClaim", "Deployment", "StatefulSet", "NetworkPolicy"}
    assert {f"apply {kind}" for kind in kinds} <= set(deaths)
    assert {"patch RLJob status", "create Secret", "POST /v1/epoch", "PUT /v1/desired"} <= set(deaths)
    assert_came_once(job, epoch=1, restarts=0)
    pods = worker_uids(job)

    job.process("actor").kill()
    deaths = incarnations.die_at_every_write(lambda raw: is_ready_in(2, raw), seconds=400)
    assert {"patch RLJob status", "POST /v1/epoch", "PUT /v1/desired"} <= set(deaths)
    assert_came_once(job, epoch=2, restarts=1)

    job.change({"training": {"optimizer": {"learningRate": 5e-4}}})
    deaths = incarnations.die_at_every_write(lambda raw: is_ready_in(3, raw), seconds=400)
    assert {"patch RLJob status", "apply ConfigMap", "POST /v1/epoch", "PUT /v1/desired"} <= set(deaths)
    assert_came_once(job, epoch=3, restarts=2)
    assert worker_uids(job) == pods, "neither a dead rank nor a learning rate replaces a pod"

    step = job.step()
    writes = incarnations.live(lambda raw: step_of(raw) > step, seconds=240)
    rest = {"patch RLJob status", "create Event", "POST /v1/failures/acknowledge"}
    assert set(writes) <= rest, "an operator that lives on has nothing left to do"

    kubectl.delete("rljob", job.name)
    assert incarnations.live(lambda raw: raw is None, seconds=240) == []
    kubectl.wait("all of the job's objects to be gone", lambda: not kubectl.all(MADE, LABEL_JOB))


def test_a_process_that_is_killed_in_the_middle_of_a_turn_is_gone_on_from(
    cluster: Cluster, node: Node, kubectl: Kubectl, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLJOB_FAILPOINTS", "operator.after_write=7")
    monkeypatch.setenv("RLJOB_FAILPOINTS_DIR", str(tmp_path))
    apply_suspended(kubectl, "cut")
    with OperatorProcess(cluster, namespace, tmp_path / "operator", lease=None) as operator:
        kubectl.wait("the operator to be killed", lambda: operator.exit_code is not None)
        assert operator.exit_code == -signal.SIGKILL, operator.tail()
        assert 0 < len(kubectl.all(MADE, LABEL_JOB)) < 8

        operator.start()
        wait_suspended(kubectl, "cut")
        kubectl.wait_for("deployment", "cut-advantages", "to be there", lambda found: found)
        assert (tmp_path / "operator.after_write.fired").exists()


def assert_came_once(job: ClusterJob, *, epoch: int, restarts: int) -> None:
    """One epoch a cause, one pod a replica, no container started twice, and a Deployment of one revision."""
    status = job.status()
    assert status["restart"]["epoch"] == epoch, job.summary()
    assert status["restart"]["globalRestarts"] == restarts, job.summary()
    pods = job.pods()
    assert len(pods) == len(status["roles"]), job.summary()
    started = [each["restartCount"] for pod in pods for each in pod["status"]["containerStatuses"]]
    assert started == [0] * len(pods), job.summary()
    revisions = job.kubectl.all("replicaset", f"{LABEL_JOB}={job.name}")
    assert len(revisions) == len(job.kubectl.all("deployment", f"{LABEL_JOB}={job.name}")), job.summary()


LEASE: dict[str, Any] = {"name": "faults", "durationSeconds": 30, "renewSeconds": 25, "retrySeconds": 2}
"""So long that a busy machine does not make a healthy leader lose it."""

LOST = "lost the lease"


@pytest.mark.long
def test_a_leader_that_dies_or_sleeps_is_followed_and_can_do_no_harm(
    cluster: Cluster, node: Node, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    lease = {**LEASE, "namespace": namespace}
    job = ClusterJob(kubectl, made_patient("led"))
    with (
        OperatorProcess(cluster, namespace, tmp_path / "a", lease=lease) as first,
        OperatorProcess(cluster, namespace, tmp_path / "b", lease=lease) as second,
    ):
        job.apply().wait_epoch_ready(1)
        leader, other = (first, second) if "is held by" in first.log.read_text() else (second, first)
        holder = holder_of(kubectl)

        # While no one leads, a rank dies. Who takes over restarts the job once, for that.
        leader.kill()
        job.process("actor").kill()
        job.wait_epoch_ready(2)
        assert holder_of(kubectl) != holder
        assert job.status()["restart"]["globalRestarts"] == 1, job.summary()

        # The new leader falls asleep, and a third incarnation of the operator takes over from it.
        leader.start()
        before, stale = job.object(), applied_now(kubectl, "configmap", config_name(job.name))
        holder = holder_of(kubectl)
        other.pause()
        job.restart_request()
        job.wait_epoch_ready(3)
        assert holder_of(kubectl) != holder
        refuse_what_is_late(cluster, kubectl, namespace, job, before)
        correct_what_was_under_way(kubectl, job, stale)

        message = len(other.log.read_text())
        other.resume()
        kubectl.wait("the replica that slept to end", lambda: other.exit_code is not None)
        assert other.exit_code == 1
        last_words = other.log.read_text()[message:]
        assert LOST in last_words
        assert not [text for text in ("applied", "scaled", "deleted", "is open") if f": {text} " in last_words], (
            last_words
        )
        assert leader.exit_code is None
        step = job.step()
        job.wait_step(step + 1)


def refuse_what_is_late(cluster: Cluster, kubectl: Kubectl, namespace: str, job: ClusterJob, before: Object) -> None:
    """A status write made from an older version, an older epoch, and another decision for the same epoch."""
    late = {"metadata": {"resourceVersion": before["metadata"]["resourceVersion"]}, "status": before["status"]}
    with pytest.raises(KubectlFailed, match="the object has been modified"):
        kubectl.merge("rljob", job.name, late, subresource="status")

    secret = kubectl.get("secret", secret_name(job.name))
    assert secret is not None
    token = base64.b64decode(secret["data"]["token"]).decode()
    incarnations = Incarnations(cluster.kubeconfig, namespace, job.name)
    now, then = job.status()["restart"], before["status"]["restart"]
    for restart, decision in ((then, then["decisionId"]), (now, "e3-of-somebody-else")):
        request = EpochRequest(epoch=restart["epoch"], decision_id=decision, reason="late")
        with pytest.raises(CoordinatorRefused, match="409"):
            incarnations.ask(token, lambda link, request=request: link.raise_epoch(request))  # type: ignore[misc]
    again = EpochRequest(epoch=now["epoch"], decision_id=now["decisionId"], reason=now["reason"])
    incarnations.ask(token, lambda link: link.raise_epoch(again))
    assert job.epoch() == now["epoch"]


def correct_what_was_under_way(kubectl: Kubectl, job: ClusterJob, stale: Object) -> None:
    """Applies of a former leader that come late: an older object, and a Deployment scaled to nothing."""
    stale["metadata"]["annotations"][ANNOTATION_APPLIED] = "of-a-former-leader"
    stale["data"] = dict.fromkeys(stale["data"], "{}")
    wanted = kubectl.get("configmap", stale["metadata"]["name"])
    assert wanted is not None
    apply_as_operator(kubectl, stale)
    kubectl.wait_for(
        "configmap", wanted["metadata"]["name"], "to be right again", lambda it: it["data"] == wanted["data"]
    )

    deployment = applied_now(kubectl, "deployment", f"{job.name}-advantages")
    deployment["spec"]["replicas"] = 0
    apply_as_operator(kubectl, deployment)
    name = deployment["metadata"]["name"]
    kubectl.wait_for("deployment", name, "to have its pod again", lambda it: it["spec"]["replicas"] == 1)
    kubectl.wait_for("deployment", name, "to be Ready again", lambda it: it["status"].get("readyReplicas") == 1)
    job.wait_true("Ready")


def applied_now(kubectl: Kubectl, kind: str, name: str) -> Object:
    """An object without what the API server adds, to be applied again."""
    found = kubectl.get(kind, name)
    assert found is not None
    retained = ("name", "labels", "annotations", "ownerReferences")
    metadata = {text: found["metadata"][text] for text in retained if text in found["metadata"]}
    return {text: value for text, value in found.items() if text != "status"} | {"metadata": metadata}


def apply_as_operator(kubectl: Kubectl, manifest: Object) -> None:
    options = ("--server-side", "--force-conflicts", "--field-manager=rljob-operator")
    kubectl("apply", *options, "-f", "-", stdin=json.dumps(manifest))


def holder_of(kubectl: Kubectl) -> str:
    lease = kubectl.get("lease", LEASE["name"])
    assert lease is not None
    return str(lease["spec"]["holderIdentity"])


@pytest.mark.long
def test_connections_that_break_or_go_silent_lose_nothing(
    cluster: Cluster, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    port = free_port()
    with Door(cluster, tmp_path) as door:
        door.shut()
        options: dict[str, Any] = {"lease": None, "healthPort": port}
        with OperatorProcess(door.cluster, namespace, tmp_path / "a", **options) as operator:
            kubectl.wait("the operator to wait for an answer", lambda: "cannot begin yet" in operator.log.read_text())
            door.open()
            apply_suspended(kubectl, "early", "doomed")
            for name in ("early", "doomed"):
                wait_suspended(kubectl, name)

            message = len(operator.log.read_text())
            door.shut()
            apply_suspended(kubectl, "meanwhile")
            kubectl.delete("rljob", "doomed")
            kubectl.delete("service", "early-control")
            kubectl.wait("the operator to notice", lambda: "did not answer" in operator.log.read_text()[message:])
            door.open()
            wait_suspended(kubectl, "meanwhile")
            kubectl.wait_for("service", "early-control", "to be there again", lambda found: found)
            doomed = f"{LABEL_JOB}=doomed"  # no watch reports its end: the next count of the jobs does, in a minute
            kubectl.wait("nothing to be left of the deleted job", lambda: not kubectl.all(MADE, doomed))

            door.silence()
            apply_suspended(kubectl, "late")
            kubectl.delete("service", "early-control")
            wait_suspended(kubectl, "late")
            kubectl.wait_for("service", "early-control", "to be there again", lambda found: found)
            assert health(port) == "ok"
            assert operator.stop() == 0

        # A leader that is cut off from the API server ends by itself before another one may lead.
        lease = {**LEASE, "namespace": namespace}
        with OperatorProcess(door.cluster, namespace, tmp_path / "b", lease=lease) as operator:
            apply_suspended(kubectl, "led")
            wait_suspended(kubectl, "led")  # it leads, and is at work
            door.shut()
            kubectl.wait("the operator to end", lambda: operator.exit_code is not None)
            assert operator.exit_code == 1
            assert LOST in operator.log.read_text()


def apply_suspended(kubectl: Kubectl, *names: str) -> None:
    jobs = [leaves_nothing(make_small_job(name, roles={"advantages": {}})) for name in names]
    kubectl.apply(*({**job, "spec": {**job["spec"], "suspend": True}} for job in jobs))


def wait_suspended(kubectl: Kubectl, name: str) -> None:
    def holds(raw: Object) -> bool:
        conditions = raw.get("status", {}).get("conditions", [])
        return any(each["type"] == "Suspended" and each["status"] == "True" for each in conditions)

    kubectl.wait_for("rljob", name, "to be Suspended", holds)
    kubectl.wait_for("deployment", f"{name}-rollout", "to be there", lambda found: found)


def health(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
