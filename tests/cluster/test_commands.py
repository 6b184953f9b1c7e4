"""Commands of `rljob` that ask a real API server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_api.status import Phase
from tests.cluster.harness.definition import apply_job, install_definition
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Cluster
from tests.cluster.statuses import FULL, write_status
from tests.unit.api.manifests import changed
from tests.unit.api.test_manifest import EXAMPLES, ROOT


@pytest.fixture(scope="module", autouse=True)
def definition(cluster: Cluster) -> None:
    """The CRD of the models."""
    install_definition(cluster.kubeconfig)


def _start(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rljob_cli", *arguments]
    env = {"KUBECONFIG": cluster.kubeconfig, "PATH": "/usr/bin:/bin"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def _rljob(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = _start(cluster, *arguments)
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_a_bad_manifest_ends_rljob_validate_with_64(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(changed({"spec.training.globalBatchSize": 500})))
    done = _rljob(cluster, "validate", str(tmp_path / "job.yaml"))
    assert done.returncode == EXIT_BAD_MANIFEST
    assert "spec.training.globalBatchSize: 500 does not divide rollout.batchSize x" in done.stderr


def test_rljob_restart_asks_and_waits_for_the_operator_s_answer(cluster: Cluster, kubectl: Kubectl) -> None:
    apply_job(kubectl, {})
    write_status(kubectl, FULL)
    asked = _rljob(cluster, "restart", "demo", "-n", kubectl.namespace, "--role", "reference", "--reason", "slow")
    assert asked.returncode == 0, asked.stderr
    job = kubectl.get("rlj", "demo")
    assert job is not None
    request = job["spec"]["restartRequest"]
    assert (request["role"], request["reason"]) == ("reference", "slow")
    assert asked.stdout == f"A restart of reference was asked for (id {request['id']}).\n"


def test_rljob_restart_waits_until_it_is_carried_out(cluster: Cluster, kubectl: Kubectl) -> None:
    apply_job(kubectl, {})
    write_status(kubectl, FULL)
    waits = _start(
        cluster, "restart", "demo", "-n", kubectl.namespace, "--reason", "again", "--wait", "--output", "json"
    )
    asked = kubectl.wait_for("rlj", "demo", "to be asked for a restart", lambda job: "restartRequest" in job["spec"])
    request = asked["spec"]["restartRequest"]["id"]
    done = {"epoch": 4, "handledRequest": request}
    kubectl.merge("rlj", "demo", {"status": {"restart": done}}, subresource="status")
    out, err = waits.communicate(timeout=240)
    assert (waits.returncode, err) == (0, "")
    first, *_, last = map(json.loads, out.splitlines())
    assert first == {"kind": "request", "namespace": kubectl.namespace, "name": "demo", "id": request}
    assert last == {"kind": "result", "id": request, "epoch": 4}


def test_rljob_restart_states_that_no_one_carried_it_out(cluster: Cluster, kubectl: Kubectl) -> None:
    apply_job(kubectl, {})
    write_status(kubectl, FULL)
    arguments = ("restart", "demo", "-n", kubectl.namespace, "--reason", "again", "--wait", "--timeout", "1")
    late = _rljob(cluster, *arguments)
    assert late.returncode == 1
    assert "was not carried out within 1 s (phase Running). See whether the operator runs" in late.stderr


def test_rljob_restart_states_what_has_no_sense(cluster: Cluster, kubectl: Kubectl) -> None:
    arguments = ("restart", "demo", "-n", kubectl.namespace, "--reason", "x")
    assert f"There is no RLJob demo in the namespace {kubectl.namespace}" in _rljob(cluster, *arguments).stderr
    apply_job(kubectl, {})
    write_status(kubectl, FULL.model_copy(update={"phase": Phase.SUCCEEDED}))
    done = _rljob(cluster, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("The RLJob demo has succeeded. There is nothing to restart.")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name, marks=() if name in {"quickstart.yaml", "ppo-critic.yaml"} else pytest.mark.long)
        for path, name in ((path, path.relative_to(ROOT / "examples").as_posix()) for path in EXAMPLES)
    ],
)
def test_an_example_and_what_render_makes_of_it_are_accepted(cluster: Cluster, kubectl: Kubectl, path: Path) -> None:
    rendered = _rljob(cluster, "render", str(path)).stdout
    for text in (path.read_text(), rendered):
        kubectl("create", "--validate=strict", "--dry-run=server", "-f", "-", stdin=text)


def test_a_clone_can_be_applied(cluster: Cluster, kubectl: Kubectl) -> None:
    apply_job(kubectl, {})
    write_status(kubectl, FULL)
    made = _rljob(cluster, "clone", "demo", "-n", kubectl.namespace, "--from-checkpoint", "--name", "next")
    assert made.returncode == 0, made.stderr
    kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=made.stdout)
    job = kubectl.get("rlj", "next")
    assert job is not None
    assert job["spec"]["model"]["path"].endswith("/checkpoints/4-e3-0123456789ab")
