"""A job of six roles on a cluster: a trainer's death, a pod that goes, a scale, a suspension, a later job of the name.

A record always has both models.

Actor and critic share a volume that one node may mount; the critic has two ranks. Two trackers follow all of it as one
run: TensorBoard's pod is killed now and then, and W&B's has no Secret, then no package, and costs the job nothing.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.cluster import TRACKERS_FOLDER, checkpoint_claim_name
from tests.cluster.harness import processes
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import Cluster, tracker_workload_options
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.processes import Kind
from tests.cluster.harness.rljob import ClusterJob, make_job, slowed
from tests.cluster.harness.subject import Subject
from tests.cluster.harness.volumes import folder_of_claim

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def subject(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: its processes cannot be killed")
    install_definition(cluster.kubeconfig)
    kubectl = Kubectl(cluster.kubeconfig, f"critic-{time.monotonic_ns() % 10**9:x}")
    kubectl("create", "namespace", kubectl.namespace)
    manifest = make_job(
        algorithm={"advantage": "Gae"},
        rollout={"numRollouts": 1_000_000},
        roles={"critic": {"ranksPerPod": 2}},
        checkpoint={"volume": {"size": "1Gi"}, "everySteps": 2},
        restartPolicy={"heartbeatTimeoutSeconds": 60, "stallTimeoutSeconds": 240},
        telemetry={"reportTo": ["wandb", "tensorboard"], "keysFrom": {"secretName": "tracker-keys"}},
    )
    try:
        kubectl.wait("the namespace's service account", lambda: kubectl.get("serviceaccount", "default"))
        folder, options = tmp_path_factory.mktemp("operator"), tracker_workload_options()
        with OperatorProcess(cluster, kubectl.namespace, folder, lease=None, workloads=options) as operator:
            subject = Subject(ClusterJob(kubectl, slowed(manifest, "slower")).apply(), operator)
            subject.wait_ready()
            subject.train_on()
            yield subject
    finally:
        kubectl.delete("namespace", kubectl.namespace)


def records(subject: Subject) -> list[Path]:
    """The folders of recorded checkpoints; every one of them has both models."""
    root = folder_of_claim(subject.job.kubectl, checkpoint_claim_name(subject.job.name)) / "checkpoints"
    found = [mark.parent for mark in root.glob("*/RECORDED") if not mark.parent.is_symlink()]
    for folder in found:
        assert list(folder.glob("*.safetensors")), f"{folder} has no policy"
        assert list((folder / "critic").glob("*.safetensors")), f"{folder} has no critic"
    return found


def is_reported(job: ClusterJob, what: str) -> bool:
    """Whether an Event says this of the tracker that has no keys."""
    return any(
        event["note"].startswith("telemetry.reportTo: wandb: ") and what in event["note"]
        for event in job.events("TrackerFailed")
    )


def tracker_pods(job: ClusterJob, tracker: str) -> list[Object]:
    return job.pods(f"tracker-{tracker}")


def trained_by_tensorboard(job: ClusterJob) -> tuple[list[int], int]:
    """The steps that TensorBoard shows, and how many runs it has of the job."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    root = folder_of_claim(job.kubectl, checkpoint_claim_name(job.name)) / TRACKERS_FOLDER / "tensorboard"
    metrics, events = (
        EventAccumulator(str(root / name), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        for name in ("metrics", "events")
    )
    return [one.step for one in metrics.Scalars("step/reward")], len(events.Tensors("config"))


@pytest.mark.long
def test_both_trainers_restart_drain_and_resume_from_one_record(subject: Subject) -> None:
    job = subject.job
    subject.wait("the missing Secret in an Event", lambda: is_reported(job, 'secret "tracker-keys" not found'))
    (tracker,) = tracker_pods(job, "tensorboard")
    processes.the(processes.of_container(job.kubectl, tracker["metadata"]["name"], "tracker"), Kind.FIRST).kill()
    job.kubectl("create", "secret", "generic", "tracker-keys", "--from-literal=WANDB_MODE=offline")

    job.process("critic").kill()
    subject.wait("a restart", lambda: job.epoch() == 2)
    restart = job.status()["restart"]
    assert restart["reason"] == "RankExited", job.summary()
    assert restart["message"].startswith("critic-0.0 was killed by SIGKILL"), job.summary()
    subject.wait_ready()
    subject.train_on()

    subject.wait("the missing package in an Event", lambda: is_reported(job, "the image has no wandb"))
    assert job.is_true("Ready"), job.summary()

    # Its launcher announces it: both save before the next epoch, so that nothing is trained again.
    job.kubectl.delete("pod", job.pod_of("critic"))
    subject.wait("a restart", lambda: job.epoch() == 3)
    assert job.status()["restart"]["reason"] == "PodDeleted", job.summary()
    subject.wait_ready()
    subject.train_on()

    job.change({"roles": {"rollout": {"replicas": 2}}})
    subject.wait("a second rollout", lambda: len(job.pods(role="rollout")) == 2)
    subject.wait_ready()
    subject.train_on()
    assert job.epoch() == 3, job.summary()

    job.change({"suspend": True})
    job.wait_true("Suspended")
    assert records(subject)
    subject.wait("the trackers to go", lambda: not tracker_pods(job, "tensorboard") + tracker_pods(job, "wandb"))
    step = job.step()
    assert job.status()["training"]["checkpoint"] == step + 1, job.summary()

    job.change({"suspend": False})
    subject.wait_ready()
    subject.train_on()
    job.change({"rollout": {"numRollouts": job.step() + 20}})
    rollouts = job.assert_succeeded().steps
    assert records(subject)

    # The claim outlives its job: a later one of the name goes on with both models.
    job.kubectl("delete", "rljob", job.name)
    job.manifest["spec"]["rollout"]["numRollouts"] = rollouts + 10
    job.apply()
    note = "of an earlier job, whose last checkpoint it goes on from"
    job.wait("what it goes on from", lambda: any(note in event["note"] for event in job.events("Resumed")))
    assert job.assert_succeeded().steps == rollouts + 10
    assert records(subject)
    whole = list(range(rollouts + 10)), 1
    job.wait("one run with each step once", lambda: trained_by_tensorboard(job) == whole)
