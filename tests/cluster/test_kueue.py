"""Queues with the real Kueue: quota for one job and a half, flavors, preemption; the operator is killed in between."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rljob_api.cluster import LABEL_JOB, LABEL_PRIORITY, LABEL_QUEUE
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.kueue import Queue, add_kueue, states
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, leaves_nothing, make_small_job, slowed

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
SETS = (
    ("rollout", "deployment", "rollout"),
    ("actor", "deployment", "actor"),
    ("infrastructure", "statefulset", "storage"),
)
ROOT = Path(__file__).parents[2]
PODS = 5
"""Of each job, with 20m of CPU each."""


@pytest.fixture(scope="module")
def queue(cluster: Cluster, module_kubectl: Kubectl) -> Iterator[Queue]:
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: Kueue is not added to it")
    install_definition(cluster.kubeconfig)
    add_kueue()
    queue = Queue(module_kubectl)
    yield queue
    queue.gone()


@pytest.fixture
def operator(cluster: Cluster, queue: Queue, tmp_path: object) -> Iterator[OperatorProcess]:
    options = {"lease": None, "kueue": {"enabled": True}}
    with OperatorProcess(cluster, queue.kubectl.namespace, tmp_path, **options) as operator:  # type: ignore[arg-type]
        yield operator


def make_queued(name: str, rollouts: int, *, priority: str = "", by_label: bool = False) -> Object:
    """A job of five pods that trains a step or two a second."""
    job = slowed(make_small_job(name, rollout={"numRollouts": rollouts}, restartPolicy={"heartbeatTimeoutSeconds": 60}))
    job = leaves_nothing(job)
    labels = {LABEL_PRIORITY: priority} if priority else {}
    if by_label:
        labels[LABEL_QUEUE] = "team"
    else:
        job["spec"]["scheduling"] = {"queueName": "team"}
    return {**job, "metadata": {**job["metadata"], "labels": labels}}


def why(job: ClusterJob) -> tuple[str, str]:
    """Reason and message of its suspension."""
    condition = job.condition("Suspended")
    return condition.get("reason", ""), condition.get("message", "")


def pods_of(job: ClusterJob) -> list[Object]:
    return job.kubectl.all("pods", f"{LABEL_JOB}={job.name}")


def flavors_of(workload: Object) -> dict[str, str]:
    """Set -> the flavor of its CPUs."""
    return {each["name"]: each["flavors"]["cpu"] for each in workload["status"]["admission"]["podSetAssignments"]}


def killed(operator: OperatorProcess) -> None:
    """Another one goes on."""
    operator.kill()
    operator.start()


def test_a_second_job_waits_for_quota_and_gets_another_flavor(queue: Queue, operator: OperatorProcess) -> None:
    queue.apply(a="150m")  # of 100m that each asks for
    first = ClusterJob(queue.kubectl, make_queued("first", 1_000_000)).apply()
    first.wait_true("Ready")
    workload = queue.workload("first")
    sets = {each["name"]: each["count"] for each in workload["spec"]["podSets"]}
    assert sets == {"rollout": 1, "actor": 1, "infrastructure": 3}
    queue.wait_workload("first", "to be ready", lambda found: states(found, "PodsReady"))
    assert all(queue.flavor("a").items() <= pod["spec"]["nodeSelector"].items() for pod in pods_of(first))
    assert len(pods_of(first)) == PODS

    second = ClusterJob(queue.kubectl, make_queued("second", 20, by_label=True)).apply()
    second.wait("it to wait for quota", lambda: why(second)[0] == "Queued" and "insufficient" in why(second)[1])
    killed(operator)
    assert second.status()["phase"] == "Suspended"
    assert pods_of(second) == []
    assert second.condition("Admitted")["status"] == "False"

    queue.apply(a="150m", b="120m")
    second.assert_succeeded()
    queue.wait_workload("second", "to be finished", lambda found: states(found, "Finished"))
    assert second.status()["queue"]["clusterQueue"] == queue.name
    flavors = flavors_of(queue.workload("second"))
    assert flavors["infrastructure"] == f"{queue.name}-b", "there was room for two pods alone in the first flavor"
    selectors = {each["name"]: each["nodeSelector"] for each in second.status()["queue"]["podSets"]}
    assert selectors == {name: queue.flavor(flavor[-1]) for name, flavor in flavors.items()}
    for name, kind, part in SETS:
        made = queue.kubectl.get(kind, f"second-{part}")
        assert made is not None
        assert selectors[name].items() <= made["spec"]["template"]["spec"]["nodeSelector"].items()
    assert first.is_true("Ready"), "it was left alone"
    assert first.epoch() == 1
    queue.kubectl.delete("rljob", "first")
    queue.kubectl.wait_gone("workloads", "first")


def test_a_preempted_job_saves_first_and_trains_each_sample_once(queue: Queue, operator: OperatorProcess) -> None:
    queue.apply(a="150m")
    low, high = queue.priority("low", 1), queue.priority("high", 1000)
    first = ClusterJob(queue.kubectl, make_queued("low", 1_000_000, priority=low)).apply()
    first.wait_true("Ready")
    first.wait_step(3)

    second = ClusterJob(queue.kubectl, make_queued("high", 15, priority=high)).apply()
    queue.wait_workload("low", "to be evicted", lambda found: states(found, "Evicted"))
    killed(operator)  # while it drains, or before
    first.wait("its quota to be taken", lambda: first.status()["phase"] == "Suspended")
    assert why(first)[0] == "QuotaTaken"
    assert "Preempted" in why(first)[1]
    training = first.status()["training"]
    assert training["checkpoint"] == training["step"] + 1, "what was trained last is saved"
    assert first.status()["restart"]["countedTowardsMax"] == 0
    killed(operator)  # before the quota is given back, or after
    second.wait_true("Ready")
    assert pods_of(first) == []
    second.assert_succeeded()

    first.wait_true("Ready")
    assert first.epoch() == 2
    saved = training["checkpoint"]
    first.wait_step(saved + 2)
    first.change({"rollout": {"numRollouts": first.step() + 8}})
    assert first.assert_succeeded().problems == []
    queue.wait_workload("low", "to be finished", lambda found: states(found, "Finished"))


def test_a_stopped_queue_a_deleted_workload_and_the_user_each_suspend_a_job(
    queue: Queue, operator: OperatorProcess
) -> None:
    queue.apply(a="150m")
    job = ClusterJob(queue.kubectl, make_queued("job", 1_000_000)).apply()
    job.wait_true("Ready")

    queue.change(stopPolicy="HoldAndDrain")
    job.wait("the quota to be taken", lambda: why(job)[0] == "QuotaTaken" and not pods_of(job))
    queue.change(stopPolicy="None")
    job.wait_epoch_ready(2)

    uid = queue.workload("job")["metadata"]["uid"]
    queue.kubectl.delete("workloads", "job")
    queue.wait_workload("job", "to be another one", lambda found: found["metadata"]["uid"] != uid)
    job.wait_epoch_ready(3)

    job.change({"suspend": True})
    queue.kubectl.wait_gone("workloads", "job")
    assert why(job)[0] == "Suspended"
    job.change({"scheduling": {"queueName": "nowhere"}, "suspend": False})
    job.wait("the queue to be missed", lambda: "LocalQueue nowhere doesn't exist" in why(job)[1])
    job.change({"scheduling": {"queueName": "team"}, "rollout": {"numRollouts": job.step() + 10}})
    assert job.assert_succeeded().problems == []
    assert job.status()["restart"]["countedTowardsMax"] == 0


def test_pods_that_find_no_node_give_their_quota_back_and_the_mended_job_is_admitted_again(
    queue: Queue, operator: OperatorProcess
) -> None:
    """Kueue here waits three minutes for pods to be ready."""
    queue.apply(a="150m")
    manifest = make_queued("astray", 20)
    template = manifest["spec"]["roles"]["rollout"]["template"]["spec"]
    template["nodeSelector"] = {"rljob.test/nowhere": "yes"}
    job = ClusterJob(queue.kubectl, manifest).apply()
    job.wait("a pod without a node", lambda: job.condition("Ready").get("reason") == "Unschedulable")
    queue.wait_workload("astray", "to be not ready", lambda found: states(found, "PodsReady", "False"))
    job.wait("the quota to be taken", lambda: job.epoch() == 2)
    assert queue.workload("astray")["status"]["requeueState"]["count"] == 1
    taken = [event["note"] for event in job.events("QuotaTaken")]
    assert any("PodsReadyTimeout" in note for note in taken), taken

    del template["nodeSelector"]
    job.apply()
    job.wait("its Workload to be made anew", lambda: job.epoch() == 3)
    assert job.assert_succeeded().problems == []
    assert job.status()["restart"]["countedTowardsMax"] == 0


def test_the_queue_of_the_page_admits_the_example(queue: Queue, operator: OperatorProcess) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/kueue.md").read_text(), re.MULTILINE | re.DOTALL)
    (page,) = [body for body in blocks if "kind: ClusterQueue" in body]
    made = list(yaml.safe_load_all(page))
    for each in made:  # by names of the test's own: two of the three have no namespace
        text = yaml.safe_dump(each).replace("research", f"{queue.name}-page")
        queue.kubectl("apply", "-f", "-", stdin=text)
    manifest = yaml.safe_load((ROOT / "examples/kueue.yaml").read_text())
    assert manifest["spec"]["scheduling"]["queueName"] == "research"
    manifest["spec"]["scheduling"]["queueName"] = f"{queue.name}-page"
    job = ClusterJob(queue.kubectl, leaves_nothing(manifest)).apply()
    job.wait_true("Admitted")
    job.wait("its pods", lambda: len(pods_of(job)) > PODS)
    assert all(pod["spec"]["nodeSelector"]["kubernetes.io/os"] == "linux" for pod in pods_of(job))
    queue.kubectl.delete("rljob", job.name)
    queue.kubectl.wait("its pods to go", lambda: not pods_of(job))
