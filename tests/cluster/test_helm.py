"""The chart on a real cluster: installed, asked, upgraded and removed, as its user does."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.chart.helm import CHART, HERE, helm, render
from tests.cluster.harness import hostpython
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import REPOSITORY, Cluster, workload_options

RELEASE = "rl"
OPERATOR = f"{RELEASE}-rljob-operator"
WITHOUT_MONITORING = [
    "--skip-tests",  # its pod wants the ServiceAccount to be there already
    *("--set", "monitoring.serviceMonitor.create=Never", "--set", "monitoring.prometheusRule.create=Never"),
]


@pytest.fixture
def scope(cluster: Cluster, namespace: str) -> Iterator[list[str]]:
    """Helm's arguments for the test's namespace. Nothing of a release stays, whatever came of the test."""
    scope = ["--kubeconfig", cluster.kubeconfig, "--namespace", namespace]
    yield scope
    helm("uninstall", RELEASE, *scope, "--ignore-not-found")


@pytest.fixture
def values(tmp_path: Path, namespace: str) -> Path:
    """The operator from this checkout, for this namespace alone."""
    checkout = (REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))
    repository, _, tag = hostpython.IMAGE.partition(":")
    chosen = {
        "namespaces": [namespace],
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "python": sys.executable,
        "workloads": workload_options(),
        "volumes": hostpython.volumes(*checkout),
        "volumeMounts": hostpython.mounts(*checkout),
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(chosen))
    return file


@pytest.mark.parametrize("shape", ["default", "everything"])
def test_the_api_server_takes_every_object_and_warns_of_nothing(shape: str, kubectl: Kubectl) -> None:
    kubectl("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/warn=restricted")
    values = [] if shape == "default" else ["--values", str(HERE / "everything.values.yaml")]
    rendered = render(*values, *WITHOUT_MONITORING, "--namespace", kubectl.namespace)
    kubectl("apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-", stdin=rendered)


def test_a_release_from_its_first_day_to_its_last(kubectl: Kubectl, scope: list[str], values: Path) -> None:
    first = [*scope, "--values", str(values), "--wait", "--timeout", "120s"]
    # The CRD may be there already, from whoever has used the cluster before.
    _helm(kubectl, "install", RELEASE, str(CHART), *first, "--take-ownership")
    pods = _pods(kubectl)
    assert len(pods) == 2
    _wait_for_leader(kubectl, among=pods)

    asked = _helm(kubectl, "test", RELEASE, *scope, "--logs", "--timeout", "120s")
    assert "leader: " in asked
    assert f"jobs: served in {kubectl.namespace}" in asked
    _check_rights(kubectl)
    _make_a_job_of_somebody_else(kubectl)

    _helm(kubectl, "upgrade", RELEASE, str(CHART), *first, "--set", "concurrency=8")
    newer = _pods(kubectl)
    assert len(newer) == 2
    assert not newer & pods
    _wait_for_leader(kubectl, among=newer)

    _helm(kubectl, "uninstall", RELEASE, *scope, "--wait", "--timeout", "120s")
    assert kubectl.get("customresourcedefinition", "rljobs.rljob.dev")
    assert kubectl.get("rljob", "kept")
    kinds = "deployments,services,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets"
    assert not kubectl.all(kinds, f"app.kubernetes.io/instance={RELEASE}")
    assert not kubectl.all("clusterroles,clusterrolebindings", f"app.kubernetes.io/instance={RELEASE}")

    _helm(kubectl, "install", RELEASE, str(CHART), *scope, "--values", str(values))
    assert kubectl.get("rljob", "kept")


def _helm(kubectl: Kubectl, *arguments: str) -> str:
    """Helm's words alone say little where a pod does not start."""
    try:
        return helm(*arguments)
    except AssertionError as error:
        said = kubectl("logs", "--selector", "app.kubernetes.io/name=rljob-operator", "--tail=20")
        raise AssertionError(f"{error}\n{kubectl.describe()}\nThe operator said last:\n{said}") from error


def _pods(kubectl: Kubectl) -> set[str]:
    """Of the operator, those that are to stay."""
    found = kubectl.all("pods", "app.kubernetes.io/name=rljob-operator")
    return {pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]}


def _wait_for_leader(kubectl: Kubectl, *, among: set[str]) -> None:
    def holds(lease: Object) -> bool:
        holder = lease["spec"].get("holderIdentity") or ""
        return any(holder.startswith(pod) for pod in among)

    kubectl.wait_for("lease", OPERATOR, f"to be held by one of {among}", holds)


def _check_rights(kubectl: Kubectl) -> None:
    account = f"system:serviceaccount:{kubectl.namespace}:{OPERATOR}"
    expected = {
        ("watch", "rljobs.rljob.dev", kubectl.namespace): "yes",
        ("patch", "deployments.apps", kubectl.namespace): "yes",
        ("get", "nodes", kubectl.namespace): "yes",
        ("list", "secrets", kubectl.namespace): "no",
        ("create", "pods", kubectl.namespace): "no",
        ("watch", "rljobs.rljob.dev", "default"): "no",
        ("get", "secrets", "kube-system"): "no",
    }
    for (verb, resource, where), answer in expected.items():
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": account, "resourceAttributes": _attributes(verb, resource, where)},
        }
        found = json.loads(kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review)))
        assert found["status"]["allowed"] == (answer == "yes"), (verb, resource, where)


def _attributes(verb: str, resource: str, namespace: str) -> dict[str, str]:
    plural, _, group = resource.partition(".")
    return {"verb": verb, "resource": plural, "group": group, "namespace": "" if plural == "nodes" else namespace}


def _make_a_job_of_somebody_else(kubectl: Kubectl) -> None:
    """One that the operator leaves alone, to see what becomes of jobs when it goes."""
    job = yaml.safe_load((REPOSITORY / "examples/quickstart.yaml").read_text())
    job["metadata"] = {"name": "kept"}
    job["spec"]["managedBy"] = "example.com/somebody"
    kubectl.apply(job)
