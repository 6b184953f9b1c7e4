"""An evaluation on a cluster whose coordinator's pod, and then whose actor's pod, goes in the middle of it.

Each version is evaluated once, the job ends with the version that `stopWhen` names, and the best checkpoint is kept.
A tracker without its Secret is seen in the status all the while, and costs the job nothing.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rljob_api.cluster import checkpoint_claim_name
from rljob_api.spec import RLJobSpec
from rljob_cli.jobs.sample_log import audit_run
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import Cluster, tracker_workload_options
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, make_small_job
from tests.cluster.harness.subject import Subject
from tests.cluster.harness.volumes import folder_of_claim

pytestmark = pytest.mark.timeout(900)

PROMPTS, SAMPLES = 48, 2
METRIC = f"eval/sampled/mean@{SAMPLES}"
REWARD = """
import threading
import time
from pathlib import Path

EIGHT = threading.Semaphore(8)

def share(answers):
    for answer in answers:
        if "held" in answer.row:
            with EIGHT:
                time.sleep(1.0)
            with Path(__file__).with_name("calls").open("a") as calls:
                calls.write(answer.prompt + "\\n")
    return [sum(a == b for a, b in zip(one.response, one.label)) / 3 for one in answers]
"""
"""Answers of the sets take a second each, of which eight pass at a time, and are counted in the file `calls`."""


@contextmanager
def files() -> Iterator[Path]:
    """Reward and set, in a folder to which pods write as another user."""
    with tempfile.TemporaryDirectory(prefix="rljob-evaluation-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "counted.py").write_text(REWARD)
        lines = [{"prompt": f"{n:03d}=", "label": f"{n:03d}"[::-1], "held": 1} for n in range(PROMPTS)]
        (folder / "set.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        yield folder


def evaluated_job(folder: Path) -> Object:
    """It evaluates every second version and ends with the second evaluation, whatever that finds."""
    mount = {"name": "files", "mountPath": str(folder)}
    template = {
        "spec": {
            "containers": [{"name": "worker", "volumeMounts": [mount]}],
            "volumes": [{"name": "files", "hostPath": {"path": str(folder), "type": "Directory"}}],
        }
    }
    data = {"prompts": str(folder / "set.jsonl")}
    sets: list[dict[str, Any]] = [
        {"name": "sampled", "data": data, "samplesPerPrompt": SAMPLES},
        {"name": "greedy", "data": data, "sampling": {"temperature": 0, "maxNewTokens": 3}},
    ]
    return make_small_job(
        evaluation={"sets": sets, "everySteps": 2},
        rollout={"numRollouts": 1000, "reward": {"custom": {"function": "counted:share", "path": str(folder)}}},
        roles={"rollout": {"template": template}},
        stopWhen={"metric": METRIC, "above": -1, "forSteps": 2},
        checkpoint={"everySteps": 1000, "keep": 1, "keepBest": {"metric": METRIC}, "volume": {"size": "1Gi"}},
        restartPolicy={"heartbeatTimeoutSeconds": 60, "stallTimeoutSeconds": 240},
        telemetry={"reportTo": ["wandb"], "keysFrom": {"secretName": "no-such-secret"}},
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    with files() as folder:
        yield folder


@pytest.fixture
def subject(cluster: Cluster, folder: Path, tmp_path: Path) -> Iterator[Subject]:
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: its folders cannot be mounted")
    install_definition(cluster.kubeconfig)
    kubectl = Kubectl(cluster.kubeconfig, f"evaluation-{time.monotonic_ns() % 10**9:x}")
    kubectl("create", "namespace", kubectl.namespace)
    try:
        kubectl.wait("the namespace's service account", lambda: kubectl.get("serviceaccount", "default"))
        options = tracker_workload_options()
        with OperatorProcess(cluster, kubectl.namespace, tmp_path, lease=None, workloads=options) as operator:
            yield Subject(ClusterJob(kubectl, evaluated_job(folder)).apply(), operator)
    finally:
        kubectl.delete("namespace", kubectl.namespace)


def scored(folder: Path) -> int:
    calls = folder / "calls"
    return calls.read_bytes().count(b"\n") if calls.exists() else 0


def evaluated(root: Path) -> list[str]:
    """What the coordinator has written of each evaluation."""
    lines = [json.loads(line) for line in (root / "events.jsonl").read_text().splitlines()]
    return [line["message"] for line in lines if line["reason"] == "Evaluated"]


@pytest.mark.long
def test_pods_that_go_within_an_evaluation_change_no_value_and_no_end(subject: Subject, folder: Path) -> None:
    job, samples = subject.job, PROMPTS * (SAMPLES + 1)

    def recorded() -> int | None:
        found = job.status().get("training", {}).get("checkpoint")
        return None if found is None else int(found)

    subject.wait("some scores of version 2, which is recorded", lambda: scored(folder) >= 8 and recorded() == 2)
    found = job.condition("TrackersFed")
    assert (found["status"], found["reason"]) == ("False", "CreateContainerConfigError"), job.summary()
    assert 'secret "no-such-secret" not found' in found["message"]
    assert job.is_true("Ready"), job.summary()
    (coordinator,) = job.pods("coordinator")
    job.kubectl.delete("pod", coordinator["metadata"]["name"])
    assert scored(folder) < samples, "the evaluation was over before its coordinator went"
    subject.wait("the result of version 2", lambda: len(job.events("Evaluated")) == 1)
    assert job.epoch() == 1, job.summary()

    before = scored(folder)
    subject.wait("some scores of version 4", lambda: scored(folder) >= before + 8 and recorded() == 4)
    job.kubectl.delete("pod", job.pod_of("actor"))
    assert scored(folder) < before + samples, "the evaluation was over before its actor went"
    job.wait_true("Succeeded")

    status, condition = job.status(), job.condition("Succeeded")
    assert (status["restart"]["epoch"], status["restart"]["reason"]) == (2, "PodDeleted"), job.summary()
    assert condition["reason"] == "StopConditionMet", job.summary()
    assert (status["training"]["step"], status["training"]["checkpoint"]) == (3, 4), job.summary()
    assert status["evaluation"]["version"] == 4
    root = folder_of_claim(job.kubectl, checkpoint_claim_name(job.name))
    first, second = evaluated(root)
    assert first.startswith("Version 2 was evaluated: sampled mean@2 0.")
    assert second.startswith("Version 4 was evaluated: sampled mean@2 0.")
    values = {one["name"]: one["value"] for one in status["evaluation"]["sets"]}
    assert f"sampled mean@2 {values['sampled']:.4f}" in second
    assert f"greedy mean@1 {values['greedy']:.4f}" in second
    assert scored(folder) >= 2 * samples

    spec = RLJobSpec.model_validate_json(json.dumps(job.object()["spec"]))
    assert audit_run(root, spec, steps=4).problems == []
    best = json.loads((root / "checkpoints" / "best.json").read_bytes())
    assert (best["metric"], best["version"]) in ((METRIC, 2), (METRIC, 4))
    retained = {int(mark.parent.name.split("-")[0]) for mark in (root / "checkpoints").glob("*-e*/RECORDED")}
    assert retained == {best["version"], 4}
    shown = subprocess.run(
        [sys.executable, "-m", "rljob_cli", "checkpoint", "show", str(root / "checkpoints")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert f"kept as the best: {METRIC} {best['value']:.6g}, the largest" in shown.stdout
