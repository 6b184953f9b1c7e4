"""The chart on a real cluster: installed, asked, upgraded and removed, as its user does."""

import json

import pytest
import yaml

from tests.cluster.chart.helm import HERE, render
from tests.cluster.chart.release import OPERATOR, RELEASE, Release
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import REPOSITORY

WITHOUT_MONITORING = [
    "--skip-tests",  # its pod wants the ServiceAccount to be there already
    *("--set", "monitoring.serviceMonitor.create=Never", "--set", "monitoring.prometheusRule.create=Never"),
]


@pytest.mark.parametrize("shape", ["default", "everything"])
def test_the_api_server_takes_every_object_and_warns_of_nothing(shape: str, kubectl: Kubectl) -> None:
    kubectl("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/warn=restricted")
    values = [] if shape == "default" else ["--values", str(HERE / "everything.values.yaml")]
    rendered = render(*values, *WITHOUT_MONITORING, "--namespace", kubectl.namespace)
    kubectl("apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-", stdin=rendered)


def test_a_release_from_its_first_day_to_its_last(kubectl: Kubectl, release: Release) -> None:
    pods = release.install()
    assert len(pods) == 2
    release.wait_for_leader(pods)

    asked = release("test", RELEASE, *release.scope, "--logs", "--timeout", "240s")
    assert "leader: " in asked
    assert f"jobs: served in {kubectl.namespace}" in asked
    _check_rights(kubectl)
    _make_a_job_of_somebody_else(kubectl)

    newer = release.upgrade("concurrency=8")
    assert len(newer) == 2
    assert not newer & pods
    release.wait_for_leader(newer)

    release.uninstall()
    assert kubectl.get("customresourcedefinition", "rljobs.rljob.dev")
    assert kubectl.get("rljob", "kept")
    kinds = "deployments,services,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets"
    assert not kubectl.all(kinds, f"app.kubernetes.io/instance={RELEASE}")
    everywhere = kubectl.all("clusterroles,clusterrolebindings", f"app.kubernetes.io/instance={RELEASE}")
    # Releases of other namespaces have the same name.
    assert not [each for each in everywhere if each["metadata"]["name"].startswith(f"{kubectl.namespace}:")]


COMMAND = {"spec": {"containers": [{"name": "worker", "command": ["sleep"]}]}}
PERHAPS = {"spec": {"hostNetwork": "perhaps"}}


@pytest.mark.long
def test_options_that_cannot_work_stop_their_rollout_and_the_operator_before_goes_on(
    kubectl: Kubectl, release: Release
) -> None:
    """By a rule of the operator's own, and by what the API server says of its pods."""
    pods = release.install()
    release.wait_for_leader(pods)
    for template, text in (
        (COMMAND, "workloads.podTemplate.spec.containers[worker].command: cannot be patched"),
        (PERHAPS, "workloads: the API server refuses the "),
    ):
        release.begin_upgrade(f"workloads.podTemplate={json.dumps(template)}")
        kubectl.wait(
            f"a new pod to end with {text}",
            lambda text=text: any(code == 64 and text in message for code, message in release.ended().values()),  # type: ignore[misc]
        )
        # One of the replicas before may have lost the lease meanwhile, and be begun again.
        assert not {name for name, (code, _) in release.ended().items() if code == 64} & pods
        assert pods <= {
            pod["metadata"]["name"] for pod in kubectl.all("pods") if "deletionTimestamp" not in pod["metadata"]
        }
    release.wait_for_leader(pods)


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
