"""The Roles of docs/rights.md, given to users of a real API server: they can do what the page says, and no more."""

import re
from typing import Any

import pytest
import yaml

from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, KubectlFailed
from tests.cluster.harness.machine import REPOSITORY, Cluster

JOB = yaml.safe_load((REPOSITORY / "examples/quickstart.yaml").read_text())
KEYS = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"KEY": "secret"}}
REWARDS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rewards"}, "data": {"reward.py": "x = 1"}}


def roles() -> dict[str, Any]:
    (block,) = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "docs/rights.md").read_text(), re.DOTALL)
    return {role["metadata"]["name"]: role for role in yaml.safe_load_all(block)}


def user_of(kubectl: Kubectl, role: str) -> str:
    kubectl("create", "rolebinding", role, f"--role={role}", f"--user={role}")
    return f"--as={role}"


@pytest.fixture
def applied(cluster: Cluster, kubectl: Kubectl) -> Kubectl:
    install_definition(cluster.kubeconfig)
    kubectl.apply(*roles().values())
    return kubectl


def test_a_researcher_applies_scales_and_deletes_a_job_and_neither_reads_nor_writes_a_secret(applied: Kubectl) -> None:
    applied.apply(KEYS)
    user = user_of(applied, "rljob-researcher")
    for manifest in (REWARDS, JOB):
        applied(user, "create", "-f", "-", stdin=yaml.safe_dump(manifest))
    applied(user, "scale", "rlj/quickstart", "--replicas=2")
    applied(user, "get", "events,pods,deployments")
    with pytest.raises(KubectlFailed, match=r'cannot get resource "secrets"'):
        applied(user, "get", "secret", "keys")
    others = yaml.safe_dump({**KEYS, "metadata": {"name": "others"}})
    with pytest.raises(KubectlFailed, match=r'cannot create resource "secrets"'):
        applied(user, "create", "-f", "-", stdin=others)
    # The answer to a patch has the whole object.
    with pytest.raises(KubectlFailed, match=r'cannot patch resource "secrets"'):
        applied(user, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump(KEYS))
    with pytest.raises(KubectlFailed, match=r'cannot create resource "pods"'):
        applied(user, "run", "mine", "--image=worker")
    applied(user, "delete", "rlj", "quickstart", "--wait=false")


def test_ci_applies_a_job_and_may_neither_delete_it_nor_create_secrets(applied: Kubectl) -> None:
    user = user_of(applied, "rljob-ci")
    applied(user, "apply", "-f", "-", stdin=yaml.safe_dump(JOB))
    applied(user, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump(JOB))
    applied(user, "get", "rlj", "quickstart", "-w", "--request-timeout=1s")
    with pytest.raises(KubectlFailed, match=r'cannot delete resource "rljobs"'):
        applied(user, "delete", "rlj", "quickstart")
    with pytest.raises(KubectlFailed, match=r'cannot create resource "secrets"'):
        applied(user, "create", "-f", "-", stdin=yaml.safe_dump(KEYS))


def test_a_scaler_changes_replicas_alone(applied: Kubectl) -> None:
    user = user_of(applied, "rljob-scaler")
    applied.apply(JOB)
    applied(user, "patch", "rlj", "quickstart", "--subresource=scale", "--type=merge", "-p", '{"spec":{"replicas":3}}')
    job = applied.get("rljob", "quickstart")
    assert job is not None
    assert job["spec"]["roles"]["rollout"]["replicas"] == 3
    with pytest.raises(KubectlFailed, match=r'cannot get resource "rljobs"'):
        applied(user, "patch", "rlj", "quickstart", "--type=merge", "-p", '{"spec":{"suspend":true}}')
