"""Trained weights outlive their job: its claim stays, and a later job of the name trains on from it.

The tests go on with each other's claim: a run is deleted midway, trained to its end, kept by its claim while its time
to live deletes it, met by one of another seed, and cloned from.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.cluster import LABEL_JOB, checkpoint_claim_name
from rljob_cli.jobs.sample_log import read_lines
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import PATIENCE_SECONDS, Kubectl, Object
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, make_small_job, slowed
from tests.cluster.harness.volumes import folder_of_claim

NAME = "kept"
CLAIM = checkpoint_claim_name(NAME)
PATIENT = {"heartbeatTimeoutSeconds": 60}

pytestmark = [pytest.mark.timeout(900), pytest.mark.story]


class Stage:
    """The namespace, and the runs in it."""

    def __init__(self, cluster: Cluster, kubectl: Kubectl) -> None:
        self.cluster = cluster
        self.kubectl = kubectl
        self.folder = Path()
        """Of the claim, once it is bound."""
        self.rollouts = 0
        """Of the run, as it was asked for last."""

    def apply(self, rollouts: int, *, slow: bool = False, **changes: Any) -> ClusterJob:
        """The job of that name, which differs in nothing that is fixed unless it is said."""
        manifest = make_small_job(NAME, rollout={"numRollouts": rollouts}, restartPolicy=PATIENT, **changes)
        return ClusterJob(self.kubectl, slowed(manifest) if slow else manifest).apply()

    def delete(self) -> None:
        """The job; what it was made of goes by itself."""
        self.kubectl("delete", "rljob", NAME)

    def claim(self) -> Object:
        """As the API server has it."""
        found = self.kubectl.get("persistentvolumeclaim", CLAIM)
        assert found is not None
        return found

    def record(self) -> Object:
        """What the leader has recorded last."""
        found: Object = json.loads((self.folder / "checkpoints/record.json").read_text())
        return found

    def recorded_epoch(self) -> int:
        """Its epoch, 0 before there is one."""
        return int(self.record()["epoch"]) if (self.folder / "checkpoints/record.json").exists() else 0

    def recorded(self) -> int:
        """Its version."""
        return int(self.record()["id"]["version"])

    def begun(self) -> int:
        """The last epoch that was begun."""
        return int(json.loads((self.folder / "checkpoints/begun.json").read_text())["epoch"])

    def epochs(self) -> list[int]:
        """In which rollouts were trained, in their order."""
        return list(dict.fromkeys(line.epoch for line in read_lines(self.folder / "samples.jsonl")))

    def rljob(self, *arguments: str) -> str:
        """What the command prints."""
        done = subprocess.run(
            [sys.executable, "-m", "rljob_cli", *arguments, "-n", self.kubectl.namespace],
            env={"KUBECONFIG": self.cluster.kubeconfig, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def stage(cluster: Cluster, module_kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: its volumes cannot be read")
    install_definition(cluster.kubeconfig)
    with OperatorProcess(cluster, module_kubectl.namespace, tmp_path_factory.mktemp("operator"), lease=None):
        yield Stage(cluster, module_kubectl)


def message(job: ClusterJob, kind: str) -> str:
    """Reason and message of a condition."""
    found = job.condition(kind)
    return f"{found['reason']}: {found['message']}" if found else ""


def test_a_job_that_is_deleted_while_it_runs_leaves_its_claim(stage: Stage) -> None:
    job = stage.apply(1_000_000, slow=True)
    job.wait_step(1)
    job.restart_request()
    job.wait_epoch_ready(2)
    stage.folder = folder_of_claim(stage.kubectl, CLAIM)
    job.wait("a checkpoint of the second epoch", lambda: stage.recorded_epoch() >= 2)
    stage.delete()
    assert "ownerReferences" not in stage.claim()["metadata"]


def test_the_same_manifest_applied_at_once_trains_on(stage: Stage) -> None:
    """With another reward and fewer rollouts, which are not fixed. The pods of the first are still there."""
    before, recorded = stage.begun(), stage.recorded()
    # The pods of the first train on until they have gone.
    stage.rollouts = recorded + 200
    job = stage.apply(stage.rollouts)
    assert job.wait_event("Resumed")["note"] == (
        f"epoch {before + 1} begins after epoch {before} of an earlier job, whose last checkpoint it goes on from"
    )
    assert job.assert_succeeded().steps == stage.rollouts
    restart = job.status()["restart"]
    assert restart["epoch"] == before + 1 + restart["globalRestarts"]
    epochs = stage.epochs()
    assert epochs == sorted(epochs), "later lines are of later epochs, whichever job wrote them"
    assert (epochs[0], epochs[-1]) == (1, restart["epoch"])
    again = [line.step for line in read_lines(stage.folder / "samples.jsonl") if line.epoch > before]
    assert min(again) >= recorded, "it trains on, and begins nothing anew"
    job.change({"ttlSecondsAfterFinished": 1})


def test_its_time_to_live_leaves_the_claim_and_its_files(stage: Stage) -> None:
    stage.kubectl.wait_gone("rljob", NAME)
    everything = "pod,deployment,statefulset,secret,configmap,service,networkpolicy,poddisruptionbudget"
    stage.kubectl.wait("its objects to go", lambda: not stage.kubectl.all(everything, f"{LABEL_JOB}={NAME}"))
    stage.kubectl.wait(
        "the control Redis' own claim to go",
        lambda: [each["metadata"]["name"] for each in stage.kubectl.all("pvc", f"{LABEL_JOB}={NAME}")] == [CLAIM],
    )
    record = stage.record()
    assert record["id"]["version"] == stage.rollouts
    folder = stage.folder / "checkpoints" / record["folder"]
    assert (folder / "model.safetensors").stat().st_size > 0
    assert stage.claim()["metadata"]["annotations"]["rljob.dev/recorded"] == f"{stage.rollouts} {record['folder']}"


def test_the_same_manifest_has_nothing_left_to_train_and_starts_nothing(stage: Stage) -> None:
    job, done = stage.apply(stage.rollouts), stage.rollouts
    job.wait_true("Succeeded")
    text = f"Succeeded: all {done} rollouts were trained by an earlier job of this name: the claim {CLAIM} has version"
    assert message(job, "Succeeded").startswith(text)
    status = job.status()
    assert (status["phase"], status["training"]["checkpoint"], status["training"]["step"]) == (
        "Succeeded",
        done,
        done - 1,
    )
    assert not any(job.pods(component) for component in ("worker", "coordinator", "control", "storage"))
    stage.delete()


@pytest.mark.long
def test_more_rollouts_train_on_from_there(stage: Stage) -> None:
    before = stage.begun()
    stage.rollouts += 4
    job = stage.apply(stage.rollouts)
    assert job.assert_succeeded().steps == stage.rollouts
    assert job.epoch() > before
    stage.delete()
    objects = "pod,deployment,statefulset"
    stage.kubectl.wait("its objects to go", lambda: not stage.kubectl.all(objects, f"{LABEL_JOB}={NAME}"))


def test_another_run_is_refused_with_why_it_may_not_have_the_name(stage: Stage) -> None:
    before = stage.claim()
    job = stage.apply(stage.rollouts, seed=7)
    job.wait(
        "to be refused",
        lambda: f"{CLAIM} keeps the checkpoints of an earlier job" in message(job, "Accepted"),
    )
    text = message(job, "Accepted")
    assert text.startswith("NameTaken: ")
    assert "spec.seed: 7 differs from 0. Set that back to train on from them" in text
    assert "rljob clone kept --from-checkpoint" in text
    assert not stage.kubectl.all("pod,deployment,statefulset", f"{LABEL_JOB}={NAME}")
    assert stage.claim()["metadata"] == before["metadata"]


@pytest.mark.long
def test_a_clone_of_it_begins_with_the_weights_that_were_retained(stage: Stage) -> None:
    manifest = yaml.safe_load(stage.rljob("clone", NAME, "--from-checkpoint", "--name", "next"))
    stage.delete()
    gone = yaml.safe_load(stage.rljob("clone", NAME, "--from-checkpoint"))
    assert (manifest["spec"]["seed"], gone["spec"].get("seed", 0), gone["metadata"]["name"]) == (7, 0, "kept-2")
    assert manifest["spec"]["model"] == gone["spec"]["model"]
    manifest["spec"]["rollout"]["numRollouts"] = 2
    job = ClusterJob(stage.kubectl, manifest).apply()
    job.assert_succeeded()
    assert stage.recorded() == stage.rollouts, "the clone has a claim of its own"


@pytest.mark.long
def test_a_new_beginning_takes_the_claim_away_first(stage: Stage) -> None:
    stage.kubectl("delete", "pvc", CLAIM)
    job = stage.apply(2, seed=7, checkpoint={"volume": {"size": "1Gi", "onDelete": "Delete"}})
    assert job.assert_succeeded().steps == 2
    stage.delete()
    stage.kubectl.wait_gone("pvc", CLAIM)
