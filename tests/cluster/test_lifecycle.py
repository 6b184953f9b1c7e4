"""The life cycle of jobs on a cluster: changes of the spec, requests, suspension, ends and deletion, with real pods.

The tests go on with each other's jobs: `job` runs and is changed, suspended and deleted; `job-actor`, whose name begins
like that of one of its Deployments, lives beside it and meets what can go wrong.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from rljob_api.cluster import COMPONENT_CONTROL, COMPONENT_COORDINATOR, COMPONENT_STORAGE, COMPONENT_WORKER, LABEL_JOB
from rljob_api.names import Role
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import PATIENCE_SECONDS, Kubectl, KubectlFailed, Object
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, leaves_nothing, make_job, make_small_job, slowed

KINDS = (
    "rljob,secret,configmap,service,persistentvolumeclaim,deployment,statefulset,networkpolicy,poddisruptionbudget,pod"
)
PATIENT = {"heartbeatTimeoutSeconds": 60}
"""Nothing here is found by its silence, and a process of a busy machine that was silent for a while must not be."""
INFRASTRUCTURE = (COMPONENT_CONTROL, COMPONENT_COORDINATOR, COMPONENT_STORAGE)

pytestmark = pytest.mark.timeout(900)


class Stage:
    """The namespace, its operator, and the job that runs in it."""

    def __init__(self, kubectl: Kubectl, operator: OperatorProcess) -> None:
        self.kubectl = kubectl
        self.operator = operator
        manifest = make_small_job(
            rollout={"numRollouts": 1_000_000},
            roles={"advantages": {}},  # one that restarts in place
            restartPolicy=PATIENT,
        )
        self.job = ClusterJob(kubectl, slowed(leaves_nothing(manifest), "slower"))

    def owned(self, name: str) -> list[Object]:
        """What there is of a job."""
        return self.kubectl.all(KINDS, f"{LABEL_JOB}={name}")

    def wait_nothing_of(self, name: str) -> None:
        """Until nothing of a job is left."""
        self.kubectl.wait(f"everything of {name} to go", lambda: not self.owned(name))


@pytest.fixture(scope="module")
def stage(cluster: Cluster, module_kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: its volumes cannot be read")
    install_definition(cluster.kubeconfig)
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(cluster, module_kubectl.namespace, folder, lease=None) as operator:
        stage = Stage(module_kubectl, operator)
        stage.job.apply()
        stage.job.wait_true("Ready")
        yield stage


def incarnations(job: ClusterJob) -> dict[str, str]:
    """Replica -> uid of its pod."""
    return {pod["name"]: pod["life"].partition("/")[0] for role in job.status()["roles"] for pod in role["pods"]}


def message(job: ClusterJob, kind: str) -> str:
    """What a condition says."""
    return str(job.condition(kind).get("message", ""))


def reason(job: ClusterJob, kind: str) -> str:
    return str(job.condition(kind).get("reason", ""))


def wait_restarted(job: ClusterJob, epoch: int) -> None:
    """Until the job is ready in this very epoch, with nothing counted."""
    job.wait_epoch_ready(epoch)
    restart = job.status()["restart"]
    assert (restart["epoch"], restart["countedTowardsMax"]) == (epoch, 0), job.summary()
    assert not any(role["failures"] for role in job.status()["roles"]), job.summary()


def rljob(cluster: Cluster, *arguments: str) -> None:
    """The command, as a user calls it."""
    done = subprocess.run(
        [sys.executable, "-m", "rljob_cli", *arguments],
        env={"KUBECONFIG": cluster.kubeconfig, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_live_change_touches_no_process(stage: Stage) -> None:
    before = stage.job.standing()

    stage.job.change({"restartPolicy": {"threshold": 5}})
    stage.job.wait_seen()

    assert stage.job.standing() == before, stage.job.summary()


def test_a_change_that_cannot_be_is_refused_with_the_way_out(stage: Stage) -> None:
    with pytest.raises(KubectlFailed, match=r"checkpoints hold the weights of the model.*rljob clone"):
        stage.job.change({"model": {"dtype": "bfloat16"}})


def test_a_role_restarts_in_place_when_it_is_asked_for(stage: Stage, cluster: Cluster) -> None:
    job, before = stage.job, stage.job.standing()

    arguments = ("-n", stage.kubectl.namespace, "--role", Role.ADVANTAGES.value, "--reason", "it is slow")
    rljob(cluster, "restart", job.name, *arguments, "--wait", "--timeout", "200")
    job.wait_true("Ready")

    after = job.standing()
    changed = {name for name, value in after.items() if value != before[name]}
    assert changed == {"advantages-0"}, job.summary()
    assert after["advantages-0"][:2] == (before["advantages-0"][0], before["advantages-0"][1] + 1)
    job.wait_event("RestartRequested")
    assert len(job.events("RestartRequested")) == 1, job.summary()


def test_the_job_restarts_when_it_is_asked_for_and_once(stage: Stage, cluster: Cluster) -> None:
    job, epoch, pods = stage.job, stage.job.epoch(), incarnations(stage.job)

    arguments = ("-n", stage.kubectl.namespace, "--reason", "a new driver", "--wait", "--timeout", "200")
    rljob(cluster, "restart", job.name, *arguments)
    wait_restarted(job, epoch + 1)

    assert incarnations(job) == pods
    assert job.status()["restart"]["handledRequest"] == job.object()["spec"]["restartRequest"]["id"]


def test_a_learning_rate_begins_an_epoch_from_the_checkpoint_in_the_same_pods(stage: Stage) -> None:
    job, epoch, pods = stage.job, stage.job.epoch(), incarnations(stage.job)

    job.change({"training": {"optimizer": {"learningRate": 2e-3}}})
    job.wait("the next epoch", lambda: job.epoch() > epoch)
    wait_restarted(job, epoch + 1)

    assert incarnations(job) == pods, job.summary()
    job.wait_event("SpecChanged")
    assert len(job.events("SpecChanged")) == 1, job.summary()


def test_other_resources_of_a_role_roll_its_pods_and_no_others(stage: Stage) -> None:
    job, epoch, before = stage.job, stage.job.epoch(), incarnations(stage.job)

    job.change({"roles": {"advantages": {"resources": {"requests": {"memory": "64Mi"}}}}})
    job.wait("the next epoch", lambda: job.epoch() > epoch)
    wait_restarted(job, epoch + 1)

    after = incarnations(job)
    assert {name for name in after if after[name] != before[name]} == {"advantages-0"}, job.summary()
    assert reason(job, "Failed") == ""


def test_a_job_that_waits_states_for_what_and_ends_at_its_deadline(stage: Stage) -> None:
    before = stage.job.standing()
    manifest = leaves_nothing(make_job("job-actor", roles={"reference": {"gpus": 1}}))
    manifest["spec"] |= {"image": "localhost/none:1", "cleanPodPolicy": "Workers"}
    other = ClusterJob(stage.kubectl, manifest).apply()

    def named() -> bool:
        text = message(other, "Ready")
        roles = ("coordinator", "actor-0", "reference-0")
        return "nvidia.com/gpu" in text and "localhost/none:1" in text and all(role in text for role in roles)

    other.wait("what keeps it from running to be named", named)
    other.change({"activeDeadlineSeconds": 1})
    other.wait_true("Failed")

    assert reason(other, "Failed") == "DeadlineExceeded"
    assert "activeDeadlineSeconds (1 s)" in message(other, "Failed")
    stage.kubectl.wait("its workers to go", lambda: not other.pods(COMPONENT_WORKER))
    assert all(other.pods(component) for component in INFRASTRUCTURE)
    assert stage.job.standing() == before, stage.job.summary()


def test_a_job_made_again_at_once_is_another_and_fails_at_a_bad_configuration_once(stage: Stage) -> None:
    before, kubectl = stage.job.standing(), stage.kubectl
    kubectl.delete("rljob", "job-actor")
    kubectl.wait_gone("rljob", "job-actor")
    manifest = leaves_nothing(make_small_job("job-actor", data={"prompts": "data/nothing.jsonl"}))
    manifest["spec"] |= {"cleanPodPolicy": "None"}
    other = ClusterJob(kubectl, manifest).apply()  # what the first one was made of is still there

    kubectl.wait("its end", lambda: any(other.is_true(kind) for kind in ("Failed", "Succeeded")))

    assert reason(other, "Failed") == "ConfigurationError", other.summary()
    assert "data.prompts: data/nothing.jsonl cannot be read" in message(other, "Failed")
    assert other.status()["restart"]["globalRestarts"] == 0, other.summary()
    uid = other.object()["metadata"]["uid"]
    for each in stage.owned("job-actor"):
        if each["kind"] not in ("Pod", "RLJob"):
            assert [owner["uid"] for owner in each["metadata"]["ownerReferences"]] == [uid], each["metadata"]["name"]
    assert other.pods(COMPONENT_WORKER), "cleanPodPolicy None leaves them"
    assert stage.job.standing() == before, stage.job.summary()


def test_a_suspended_job_has_no_pods_and_goes_on_from_its_checkpoint(stage: Stage) -> None:
    job = stage.job
    claims = {each["metadata"]["uid"] for each in stage.kubectl.all("pvc", f"{LABEL_JOB}={job.name}")}

    job.change({"suspend": True})
    job.wait_true("Suspended")
    everything = f"{LABEL_JOB}={job.name}"
    job.wait("all pods to go", lambda: not stage.kubectl.all("pods", everything))

    status = job.status()
    epoch, recorded = status["restart"]["epoch"], status["training"]["checkpoint"]
    assert (status["phase"], status["scaling"]["replicas"]) == ("Suspended", 0)
    assert recorded == status["training"]["step"] + 1, "the actor saves what it has trained"
    assert {each["metadata"]["uid"] for each in stage.kubectl.all("pvc", everything)} == claims

    stage.operator.stop()
    job.change({"suspend": False})
    stage.kubectl.delete("rljob", "job-actor")  # with pods that run, and no one there to help
    stage.wait_nothing_of("job-actor")
    stage.operator.start()
    wait_restarted(job, epoch + 1)
    job.wait_step(recorded)

    report = job.audit()
    assert report.problems == [], job.summary()
    assert report.voided == 0 or report.epochs > 1


def test_a_namespace_goes_with_the_job_that_runs_in_it(stage: Stage) -> None:
    assert stage.job.is_true("Ready")
    namespace = stage.kubectl.namespace

    stage.kubectl.delete("namespace", namespace)

    stage.kubectl.wait_gone("namespace", namespace)
    assert stage.operator.exit_code is None, stage.operator.tail()
