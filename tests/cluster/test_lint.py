"""What a linter that is not ours says of the rendered chart and of a job's objects: nothing but what we mean."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_operator.build.manifests import manifests
from rljob_operator.build.parts import Owner, Platform
from rljob_operator.options import OperatorOptions, WorkloadOptions
from tests.cluster.chart.helm import render

# Bringing the cluster up puts helm on the path.
pytestmark = pytest.mark.usefixtures("cluster")

ROOT = Path(__file__).parents[2]
LINTER = ROOT / "tests/cluster/node/kube-score.sh"

EXCUSED = {
    "container-image-pull-policy": "a tag of ours never moves, and a digest cannot",
}
EXCUSED_IN_A_JOB = EXCUSED | {
    "container-ephemeral-storage-request-and-limit": "a run folder grows with logs and checkpoints: the job says",
    "deployment-replicas": "there is one coordinator; its state is in the control Redis",
    "deployment-strategy": "two coordinators at a time would be two too many: Recreate",
    "service-targets-pod": "a unit's Service selects by a label that the StatefulSet puts on its pod",
    "statefulset-has-servicename": "the ClusterIP of the control Redis outlives its pods, a headless one does not",
    "statefulset-has-host-podantiaffinity": "where storage units go is for the operator's workloads.podTemplate to say",
}
"""Check of the linter -> why we do otherwise."""

WANTED = ("container-seccomp-profile", "container-ports-check")
"""Checks that it leaves out by itself."""


def _lint(text: str, excused: dict[str, str]) -> None:
    # No limit on CPU: a throttled leader loses its Lease, and a throttled rank keeps all others waiting.
    arguments = ["score", "--kubernetes-version", "v1.34", "--exit-one-on-warning", "--ignore-container-cpu-limit"]
    arguments += [f"--ignore-test={check}" for check in excused]
    arguments += [f"--enable-optional-test={check}" for check in WANTED]
    done = subprocess.run(
        [str(LINTER), *arguments, "-"], input=text, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart() -> None:
    _lint(render("--skip-tests"), EXCUSED)


def test_a_job() -> None:
    raw: dict[str, Any] = yaml.safe_load((ROOT / "examples/quickstart.yaml").read_text())
    amounts = {"cpu": "1", "memory": "1Gi"}
    resources = {"resources": {"requests": amounts, "limits": {"memory": "1Gi"}}}
    roles = ("actor", "actorFwd", "rollout", "reference", "advantages")
    raw["spec"]["roles"] = {role: {**(raw["spec"].get("roles", {}).get(role) or {}), **resources} for role in roles}
    options = OperatorOptions(workloads=WorkloadOptions(worker_image="rljob-worker:0.3.0"))
    made = manifests(
        RLJob.model_validate(raw), Owner("team", "an-uid"), RLJobStatus(), options, Platform(pod_monitors=False)
    )
    _lint(yaml.safe_dump_all(made), EXCUSED_IN_A_JOB)
