"""The administrator's switch: what a job's templates may ask for, judged by the real API server, one rule at a time."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.chart.helm import CHART, Object, objects, refusal, render
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.rljob import make_job

pytestmark = pytest.mark.timeout(300)

KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
LABEL = "example.org/judged"


def policy(release: str, *arguments: str) -> list[Object]:
    rendered = objects(render("--set", "admissionPolicy.create=true", *arguments))
    found = [each for each in rendered if each["kind"] in KINDS]
    for each in found:  # cluster-wide objects: tests beside this one have their own
        each["metadata"]["name"] += release
        if "policyName" in each["spec"]:
            each["spec"]["policyName"] += release
    return found


@pytest.fixture(scope="module")
def judged(cluster: Cluster, module_kubectl: Kubectl) -> Iterator[Kubectl]:
    """kubectl in a namespace where the policy is in force."""
    install_definition(cluster.kubeconfig)
    kubectl, release = module_kubectl, f"-{uuid.uuid4().hex[:6]}"
    kubectl.merge("namespace", kubectl.namespace, {"metadata": {"labels": {LABEL: release[1:]}}})
    selector = f"admissionPolicy.namespaceSelector.matchLabels.{LABEL.replace('.', chr(92) + '.')}={release[1:]}"
    made = policy(release, "--set", "admissionPolicy.serviceAccounts={trainer}", "--set-string", selector)
    kubectl.apply(*made)
    kubectl.wait("the policy to be in force", lambda: said_of(kubectl, with_pod({"hostNetwork": True})))
    yield kubectl
    for each in made:
        kubectl.delete(each["kind"], each["metadata"]["name"])


def with_pod(spec: Object, role: str = "rollout") -> Object:
    return make_job(roles={"reference": {}, role: {"template": {"spec": spec}}})


def with_container(fields: Object, field: str = "containers") -> Object:
    return with_pod({field: [{"name": "worker" if field == "containers" else "first", **fields}]})


def with_added(field: str = "containers", **fields: Any) -> Object:
    """A container that the operator does not make."""
    return with_pod({field: [{"name": "mine", "image": "i", **fields}]})


def with_context(**context: Any) -> Object:
    return with_container({"securityContext": context})


def said_of(kubectl: Kubectl, manifest: Object) -> str:
    """What the API server says against it; "" if it takes it."""
    # Not by `apply`, which leaves null out before it sends anything.
    done = kubectl._run(("create", "--dry-run=server", "-f", "-"), json.dumps(manifest), 60)
    return "" if done.returncode == 0 else done.stderr


TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
HOST_PATH = {"volumes": [{"name": "x", "hostPath": {"path": "/etc"}}]}
PRIVILEGED = "privileged and allowPrivilegeEscalation"
CAPABILITIES = "capabilities cannot be added here"
ROOT = "user and group 0"
CONTEXT = "a securityContext may choose users and groups here"
ACCOUNT = "serviceAccountName may only be default or trainer here"
TOKENS = "tokens of service accounts are not mounted here"
ADDED = "a container that a template adds has to give up what it could become"
HOST = "hostNetwork, hostPID and hostIPC"
param = pytest.param

REFUSED = [
    param(with_pod(HOST_PATH), "hostPath", id="hostPath"),
    param(with_pod(HOST_PATH, "actor"), "hostPath", id="hostPath in another role"),
    param(with_pod({"volumes": [{"name": "x", "nfs": {"server": "s", "path": "/"}}]}), "hostPath", id="nfs"),
    param(make_job(infrastructure={"template": {"spec": HOST_PATH}}), "hostPath", id="hostPath of the infrastructure"),
    param(with_pod({"hostNetwork": True}), HOST, id="hostNetwork"),
    param(with_pod({"hostPID": True}), HOST, id="hostPID"),
    param(with_pod({"hostIPC": True}), HOST, id="hostIPC"),
    param(with_container({"ports": [{"containerPort": 1, "hostPort": 2}]}), "hostPort is not allowed", id="hostPort"),
    param(with_context(privileged=True), PRIVILEGED, id="privileged"),
    param(with_context(allowPrivilegeEscalation=True), PRIVILEGED, id="escalation"),
    param(
        with_container({"image": "i", "securityContext": {"privileged": True}}, "initContainers"),
        PRIVILEGED,
        id="a privileged init container",
    ),
    param(with_context(capabilities={"add": ["SYS_ADMIN"]}), CAPABILITIES, id="an added capability"),
    param(with_context(capabilities={"drop": ["KILL"]}), CAPABILITIES, id="capabilities that are kept"),
    param(with_added(), ADDED, id="a sidecar without a context"),
    param(with_added("initContainers"), ADDED, id="an init container without a context"),
    param(
        with_added(securityContext={"capabilities": {"drop": ["ALL"]}}),
        ADDED,
        id="a sidecar that may escalate by default",
    ),
    param(
        with_added(securityContext={"allowPrivilegeEscalation": False}),
        ADDED,
        id="a sidecar with the capabilities of its runtime",
    ),
    param(with_pod({"containers": [{"name": "redis", "image": "i"}]}), ADDED, id="a sidecar by another part's name"),
    param(
        make_job(infrastructure={"template": {"spec": {"containers": [{"name": "mine", "image": "i"}]}}}),
        ADDED,
        id="a sidecar of the infrastructure without a context",
    ),
    param(with_context(runAsUser=0), ROOT, id="root"),
    param(with_context(runAsNonRoot=False), ROOT, id="perhaps root"),
    param(with_pod({"securityContext": {"runAsUser": 0}}), ROOT, id="a pod of root"),
    param(with_pod({"securityContext": {"supplementalGroups": [0]}}), ROOT, id="the group of root"),
    param(with_pod({"securityContext": None}), CONTEXT, id="the operator's context taken away"),
    param(with_context(readOnlyRootFilesystem=None), CONTEXT, id="a part of it taken away"),
    param(with_context(runAsNonRoot=None), ROOT, id="perhaps root by taking the operator's no away"),
    param(with_context(seccompProfile={"type": "Unconfined"}), CONTEXT, id="seccomp"),
    param(with_context(procMount="Unmasked"), CONTEXT, id="procMount"),
    param(with_pod({"securityContext": {"sysctls": [{"name": "a", "value": "b"}]}}), CONTEXT, id="sysctls"),
    param(with_pod({"serviceAccountName": "admin"}), ACCOUNT, id="another service account"),
    param(with_pod({"serviceAccount": "admin"}), ACCOUNT, id="another service account by its old name"),
    param(with_pod({"automountServiceAccountToken": True}), TOKENS, id="a token"),
    param(with_pod({"automountServiceAccountToken": None}), TOKENS, id="a token by taking the operator's no away"),
    param(with_pod({"volumes": [TOKEN]}), TOKENS, id="a projected token"),
]

GIVEN_UP = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
OWN = [{"name": name, "resources": {"limits": {"memory": "1Gi"}}} for name in ("coordinator", "redis")]

TAKEN = [
    param(with_added(securityContext=GIVEN_UP), id="a sidecar that gives up what it could become"),
    param(with_added("initContainers", securityContext=GIVEN_UP), id="such an init container"),
    param(with_pod({"containers": [{"name": "mesh", "$patch": "delete"}]}), id="a sidecar of the options taken away"),
    param(
        make_job(infrastructure={"template": {"spec": {"containers": OWN}}}), id="the infrastructure's own containers"
    ),
    param(make_job(), id="no template"),
    param(make_job(roles={"reference": None}, algorithm={"kl": {"coefficient": 0.0}}), id="a role that is not there"),
    param(
        with_pod(
            {
                "volumes": [
                    {"name": "data", "persistentVolumeClaim": {"claimName": "prompts"}},
                    {"name": "hub", "secret": {"secretName": "hub"}},
                    {"name": "tmp", "emptyDir": {}},
                    {"name": "gone", "$patch": "delete"},
                ],
                "nodeSelector": {"pool": "gpu"},
                "tolerations": None,
                "serviceAccountName": "trainer",
                "automountServiceAccountToken": False,
                "securityContext": {"runAsUser": 2000, "fsGroup": 2000, "supplementalGroups": [3000]},
            }
        ),
        id="volumes, a node, an allowed account, another user",
    ),
    param(
        with_context(readOnlyRootFilesystem=False, capabilities={"drop": ["ALL"]}, allowPrivilegeEscalation=False),
        id="a writable root",
    ),
    param(with_container({"ports": [{"containerPort": 9000}], "env": [{"name": "A", "value": "b"}]}), id="a port"),
    param(make_job(infrastructure={"template": {"spec": {"nodeSelector": {"pool": "cpu"}}}}), id="infrastructure"),
]


@pytest.mark.parametrize(("manifest", "words"), REFUSED)
def test_what_is_refused_with_its_sentence(judged: Kubectl, manifest: Object, words: str) -> None:
    said = said_of(judged, manifest)
    assert "roles.*.template and infrastructure.template: " in said
    assert words in said


@pytest.mark.parametrize("manifest", TAKEN)
def test_what_is_taken(judged: Kubectl, manifest: Object) -> None:
    assert said_of(judged, manifest) == ""


def test_a_job_that_was_there_before_can_be_let_go_and_not_be_given_more(judged: Kubectl) -> None:
    namespace = judged.get("namespace", judged.namespace)
    assert namespace is not None
    judged.merge("namespace", judged.namespace, {"metadata": {"labels": {LABEL: None}}})
    job = with_pod({"hostPID": True})
    job["metadata"]["name"] = "old"
    judged.wait("the policy to be out of force", lambda: said_of(judged, job) == "")
    judged.apply(job)
    judged.merge(
        "namespace", judged.namespace, {"metadata": {"labels": {LABEL: namespace["metadata"]["labels"][LABEL]}}}
    )
    judged.wait("the policy to be in force", lambda: said_of(judged, with_pod({"hostIPC": True})))

    judged.merge("rljob", "old", {"metadata": {"labels": {"a": "b"}}})
    judged.merge("rljob", "old", {"status": {"phase": "Pending"}}, subresource="status")
    more = json.dumps({"spec": {"suspend": True}})
    with pytest.raises(AssertionError, match="hostNetwork, hostPID and hostIPC are not allowed here"):
        judged("patch", "rljob", "old", "--type=merge", "-p", more)
    judged("delete", "rljob", "old", "--cascade=foreground", "--timeout=30s")


def test_the_switch_is_off_by_default_and_serves_the_operators_namespaces() -> None:
    assert not [each for each in objects(render()) if each["kind"] in KINDS]
    made = policy("", "--set", "namespaces={a,b}")
    (selector,) = (each["spec"]["matchResources"]["namespaceSelector"] for each in made if "policyName" in each["spec"])
    wanted = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}
    assert selector == {"matchExpressions": [wanted]}


def test_a_value_that_is_not_known_is_refused() -> None:
    said = refusal("template", "demo", str(CHART), "--set", "admissionPolicy.action=Ignore")
    assert "action" in said
