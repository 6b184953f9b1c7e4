"""The administrator's switch: what a job's templates may ask for, judged by the real API server, one rule at a time.

And all that a tenant tries who may only make RLJobs: each try is refused at apply, or by the operator before anything
is made of it.
"""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.chart.helm import CHART, Object, objects, refusal, render
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.machine import Cluster, workload_options
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import make_job
from tests.unit.build.attacks import ATTACKS, OWN, WORKLOADS, administrators_part
from tests.unit.build.reaching_attacks import REACHING

pytestmark = pytest.mark.timeout(900)

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


@contextmanager
def in_force(kubectl: Kubectl, *arguments: str) -> Iterator[None]:
    """The policy, in this namespace alone."""
    release = f"-{uuid.uuid4().hex[:6]}"
    kubectl.merge("namespace", kubectl.namespace, {"metadata": {"labels": {LABEL: release[1:]}}})
    selector = f"admissionPolicy.namespaceSelector.matchLabels.{LABEL.replace('.', chr(92) + '.')}={release[1:]}"
    made = policy(release, *arguments, "--set-string", selector)
    kubectl.apply(*made)
    kubectl.wait("the policy to be in force", lambda: stated_of(kubectl, with_pod({"hostNetwork": True})))
    yield
    for each in made:
        kubectl.delete(each["kind"], each["metadata"]["name"])


@pytest.fixture(scope="module")
def judged(cluster: Cluster, module_kubectl: Kubectl) -> Iterator[Kubectl]:
    """kubectl in a namespace where the policy is in force."""
    install_definition(cluster.kubeconfig)
    values = {"serviceAccounts": "trainer", "priorityClasses": "patient", "csiDrivers": "shares.example.org"}
    allowed = [f"admissionPolicy.{key}={{{value}}}" for key, value in values.items()]
    with in_force(module_kubectl, *(part for each in allowed for part in ("--set", each))):
        yield module_kubectl


@pytest.fixture(scope="module")
def verdicts(judged: Kubectl) -> Mapping[str, str]:
    """What the API server says against each row, asked in one go: a kubectl for each would take a minute."""
    rows = {**numbered("refused", REFUSED), **numbered("taken", TAKEN)}
    return refusals(judged, rows, "--dry-run=server")


def numbered(prefix: str, rows: list[Any]) -> dict[str, Object]:
    return {f"{prefix}-{index}": row.values[0] for index, row in enumerate(rows)}


def refusals(kubectl: Kubectl, manifests: Mapping[str, Object], *arguments: str) -> Mapping[str, str]:
    """Name -> what is stated against the manifest, of those that are not taken."""
    # Not by `apply`, which leaves null out before it sends anything.
    items = [{**each, "metadata": {"name": name}} for name, each in manifests.items()]
    sent = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    message = kubectl._run(("create", *arguments, "-f", "-"), sent, 120).stderr
    found: dict[str, str] = {}
    name = ""
    for line in message.splitlines():
        named = re.search(r'"([a-z]+-\d+)"', line)
        name = named[1] if named else name
        found[name] = found.get(name, "") + line + "\n"
    assert found.keys() <= manifests.keys(), message
    return found


def with_pod(spec: Object, role: str = "rollout") -> Object:
    return make_job(roles={"reference": {}, role: {"template": {"spec": spec}}})


def with_container(fields: Object, field: str = "containers") -> Object:
    return with_pod({field: [{"name": "worker" if field == "containers" else "first", **fields}]})


def with_added(field: str = "containers", **fields: Any) -> Object:
    """A container that the operator does not make."""
    return with_pod({field: [{"name": "mine", "image": "i", **fields}]})


def with_context(**context: Any) -> Object:
    return with_container({"securityContext": context})


def stated_of(kubectl: Kubectl, manifest: Object) -> str:
    """What the API server says against it; "" if it takes it."""
    return refusals(kubectl, {"job-0": manifest}, "--dry-run=server").get("job-0", "")


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

PRIORITY = "priorityClassName (that of scheduling, too) may only be patient here"
PATH = 'a mountPath or terminationMessagePath has to be absolute, without "." and ".."'
PROBE = "probes and hooks that ask another host"
AT_NODE = {"httpGet": {"host": "127.0.0.1", "port": 10250}}


def with_mount(path: str, **fields: Any) -> Object:
    return with_container({"volumeMounts": [{"name": "tmp", "mountPath": path, **fields}]})


def with_metadata(kind: str, key: str) -> Object:
    return make_job(roles={"rollout": {"template": {"metadata": {kind: {key: "unconfined"}}}}})


def with_driver(driver: str) -> Object:
    return with_pod({"volumes": [{"name": "x", "csi": {"driver": driver}}]})


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
    param(with_pod({"nodeName": "n"}), "nodeName and ephemeralContainers", id="a node by its name"),
    param(with_pod({"priorityClassName": "system-node-critical"}), PRIORITY, id="another priority class"),
    param(with_pod({"priority": 1000}), PRIORITY, id="a priority in figures"),
    param(make_job(scheduling={"priorityClassName": "system-node-critical"}), PRIORITY, id="that of scheduling"),
    param(with_mount("/x", mountPropagation="Bidirectional"), "mountPropagation", id="a mount that the node sees"),
    param(with_mount("/proc/self"), PATH, id="a mount over /proc"),
    param(with_mount("/x/../proc"), PATH, id="a mount over /proc by a way back"),
    param(with_mount("proc"), PATH, id="a mount over /proc without a slash"),
    param(with_mount("//sys"), PATH, id="a mount over /sys with one too many"),
    param(with_container({"livenessProbe": AT_NODE}), PROBE, id="a probe of the node"),
    param(with_container({"lifecycle": {"preStop": {"tcpSocket": {"host": "h", "port": 1}}}}), PROBE, id="a hook"),
    param(
        with_metadata("annotations", "container.apparmor.security.beta.kubernetes.io/worker"),
        "annotations and labels that begin with container.apparmor",
        id="the AppArmor annotation",
    ),
    param(with_metadata("annotations", "devices.nri.io/pod"), "labels that begin with", id="a device by an annotation"),
    param(with_metadata("labels", "sidecar.istio.io/inject"), "labels that begin with", id="a sidecar by a label"),
    param(with_driver("secrets-store.csi.k8s.io"), "csi volumes may only be of the drivers", id="a driver of volumes"),
    param(with_container({"terminationMessagePath": "/proc/x"}), PATH, id="a last message over /proc"),
    param(with_container({"terminationMessagePath": "/x/../dev/x"}), PATH, id="a last message by a way back"),
]

TENANT: list[Object] = [
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tenant"}},
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "tenant"},
        "rules": [{"apiGroups": ["rljob.dev"], "resources": ["rljobs"], "verbs": ["create"]}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"},
        "subjects": [{"kind": "ServiceAccount", "name": "tenant"}],
    },
]

GIVEN_UP = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
ITS_OWN = [{"name": name, "resources": {"limits": {"memory": "1Gi"}}} for name in ("coordinator", "redis")]

PEACEFUL = with_pod(
    {
        "nodeSelector": {"pool": "gpu"},
        "imagePullSecrets": [{"name": "pull-of-site"}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "containers": [
            {
                "name": "worker",
                "env": [{"name": "LOG_LEVEL", "value": "debug"}],
                "resources": {"limits": {"memory": "1Gi"}},
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            },
            {"name": "mine", "image": "i", "securityContext": GIVEN_UP},
        ],
    }
)
"""What a tenant may want beside the administrator's sidecar."""

TAKEN = [
    param(
        make_job(infrastructure={"template": {"spec": {"containers": [{"name": "tracker", "env": []}]}}}),
        id="the tracker's own container",
    ),
    param(with_metadata("labels", "app"), id="an ordinary label"),
    param(with_pod({"terminationGracePeriodSeconds": 3600}), id="the longest grace period"),
    param(with_pod({"affinity": None, "volumes": [{"name": "tmp", "emptyDir": {}, "secret": None}]}), id="null"),
    param(
        with_pod({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}]}),
        id="a preference to spread",
    ),
    param(with_added(securityContext=GIVEN_UP), id="a sidecar that gives up what it could become"),
    param(with_added("initContainers", securityContext=GIVEN_UP), id="such an init container"),
    param(with_pod({"containers": [{"name": "mesh", "$patch": "delete"}]}), id="a container taken away"),
    param(
        make_job(infrastructure={"template": {"spec": {"containers": ITS_OWN}}}),
        id="the infrastructure's own containers",
    ),
    param(with_pod({"priorityClassName": "patient"}), id="an allowed priority class"),
    param(make_job(scheduling={"priorityClassName": "patient"}), id="an allowed priority class of scheduling"),
    param(with_mount("/dev/shm/mine"), id="shared memory"),
    param(with_mount("/data/..mine/"), id="a path with dots in a name"),
    param(with_container({"livenessProbe": {"httpGet": {"port": 1}}, "lifecycle": None}), id="a probe of the pod"),
    param(with_metadata("annotations", "example.org/note"), id="an annotation"),
    param(with_metadata("labels", "example.org/note"), id="a label"),
    param(with_driver("shares.example.org"), id="an allowed driver of volumes"),
    param(with_container({"terminationMessagePath": "/dev/termination-log"}), id="the usual place of a last message"),
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


@pytest.mark.parametrize(("number", "text"), [param(n, row.values[1], id=row.id) for n, row in enumerate(REFUSED)])
def test_what_is_refused_with_its_sentence(verdicts: Mapping[str, str], number: int, text: str) -> None:
    message = verdicts.get(f"refused-{number}", "")
    assert "roles.*.template and infrastructure.template: " in message
    assert text in message


@pytest.mark.parametrize("number", [param(n, id=row.id) for n, row in enumerate(TAKEN)])
def test_what_is_taken(verdicts: Mapping[str, str], number: int) -> None:
    assert verdicts.get(f"taken-{number}", "") == ""


def test_a_tenant_gains_nothing_from_what_the_administrator_brought(
    cluster: Cluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    install_definition(cluster.kubeconfig)
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"workloads": WORKLOADS}))
    kubectl.apply(*TENANT)
    tenant = f"--as=system:serviceaccount:{kubectl.namespace}:tenant"

    def may(verb: str, what: str) -> bool:
        return kubectl._run(("auth", "can-i", verb, what, tenant), None, 120).stdout.strip() == "yes"

    kubectl.wait("the tenant's rights to be in force", lambda: may("create", "rljobs"))
    assert not may("create", "pods")
    assert not may("get", "secrets")
    attacks = [*ATTACKS, *REACHING]
    jobs = {f"attack-{number}": make_job(**attack.spec) for number, attack in enumerate(attacks)}
    workloads = {**workload_options(), **WORKLOADS}

    with (
        in_force(kubectl, "--values", str(values)),
        OperatorProcess(cluster, kubectl.namespace, tmp_path / "operator", workloads=workloads),
    ):
        at_apply = dict(refusals(kubectl, {**jobs, "peaceful-0": PEACEFUL, "site-0": PEACEFUL}, tenant))
        assert "metadata.name: the ConfigMap that a job of this name makes is one that" in at_apply.pop("site-0")
        assert "peaceful-0" not in at_apply, at_apply["peaceful-0"]
        by_error = [message for message in at_apply.values() if not has_sentence(message)]
        assert by_error == [], "a rule refuses it, and not an expression that cannot be evaluated"
        taken = [name for name in (*jobs, "peaceful-0") if name not in at_apply]
        accepted = kubectl.wait("the operator to judge all jobs", lambda: judged_by_operator(kubectl, taken))
        names = {f"attack-{number}": attack.name for number, attack in enumerate(attacks)}
        gained = [names[name] for name in taken if accepted[name] == "True" and name in jobs]
        assert gained == [], "neither policy nor operator refuses it"
        by_policy = {names[name] for name in at_apply}
        assert [attack.name for attack in REACHING if attack.name not in by_policy] == [], "the policy sees it, too"
        # Its status is written before its objects are.
        kubectl.wait("its last Deployment", lambda: kubectl.get("deployment", "peaceful-0-advantages"))
        owners = kubectl.all("deployments,statefulsets")
        assert {each["metadata"]["labels"]["rljob.dev/job"] for each in owners} == {"peaceful-0"}
        for each in owners:
            template = each["spec"]["template"]
            own = next(c["name"] for c in template["spec"]["containers"] if c["name"] in OWN)
            sidecar = next(c for c in template["spec"]["containers"] if c["name"] == "mesh")
            assert sidecar["command"] == ["mesh"]
            assert json.loads(administrators_part(template, own))["pod"]["runtimeClassName"] == "sandboxed"
        at_build = [name for name in taken if name in jobs]
        assert 0 < len(at_build) < len(at_apply), "both of them are tried"


def has_sentence(message: str) -> bool:
    return "roles.*.template and infrastructure.template: " in message and "resulted in error" not in message


def judged_by_operator(kubectl: Kubectl, names: list[str]) -> dict[str, str] | None:
    """Accepted of each job, once all have it."""
    found = {
        each["metadata"]["name"]: condition["status"]
        for each in kubectl.all("rljobs")
        for condition in each.get("status", {}).get("conditions", [])
        if condition["type"] == "Accepted"
    }
    return found if found.keys() >= set(names) else None


def container_of_everything(name: str) -> Object:
    """Has each field of a container that the policy reads."""
    return {
        "name": name,
        "image": "i",
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "envFrom": [{"configMapRef": {"name": "c"}}],
        "ports": [{"containerPort": 1, "hostPort": 0}],
        "volumeMounts": [{"name": "tmp", "mountPath": "/x", "mountPropagation": "None"}],
        "volumeDevices": [{"name": "d", "devicePath": "/d"}],
        "terminationMessagePath": "/y",
        "livenessProbe": {"httpGet": {"host": "", "port": 1}, "terminationGracePeriodSeconds": 5},
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}, "postStart": {"httpGet": {"port": 1}}},
        "securityContext": {**GIVEN_UP, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}},
    }


def template_of_everything(job: str) -> Object:
    own = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"rljob.dev/job": job}}}
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    return {
        "metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
        "spec": {
            "containers": [container_of_everything("worker")],
            "volumes": [
                {"name": "s", "secret": {"secretName": "x"}},
                {"name": "p", "projected": {"sources": [{"secret": {"name": "x"}}]}},
                {"name": "c", "csi": {"driver": "shares.example.org", "nodePublishSecretRef": {"name": "x"}}},
                {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {"dataSource": {"name": "x"}}}}},
            ],
            "affinity": {"podAntiAffinity": {rule: [{**own, "namespaces": []}]}},
            "topologySpreadConstraints": [{**own, "whenUnsatisfiable": "DoNotSchedule"}],
            "imagePullSecrets": [{"name": "a"}],
            "resourceClaims": [{"name": "x", "resourceClaimName": "y"}],
            "securityContext": {"runAsUser": 1, "supplementalGroups": [3]},
            "serviceAccountName": "trainer",
            "terminationGracePeriodSeconds": 5,
        },
    }


def broken(value: Any, wrong: Any) -> Iterator[Any]:
    """`value`, each time with another part of it replaced by `wrong`."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        for each in (wrong, *broken(inner, wrong)):
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[key] = each
            yield copy


@pytest.mark.parametrize("wrong", [None, "text"], ids=["null", "a text"])
def test_what_no_pod_template_has_there_gets_a_sentence(judged: Kubectl, wrong: Any) -> None:
    jobs = {"whole-0": make_job(roles={"rollout": {"template": template_of_everything("whole-0")}})}
    for number, template in enumerate(broken(template_of_everything("JOB"), wrong)):
        named = json.loads(json.dumps(template).replace("JOB", f"broken-{number}"))
        jobs[f"broken-{number}"] = make_job(roles={"rollout": {"template": named}})
    stated = refusals(judged, jobs, "--dry-run=server")
    assert "whole-0" not in stated, stated["whole-0"]
    assert len(stated) > 20, "the table has what the policy refuses"
    assert [message for message in stated.values() if not has_sentence(message)] == []


def test_a_job_that_was_there_before_can_be_let_go_and_not_be_given_more(judged: Kubectl) -> None:
    namespace = judged.get("namespace", judged.namespace)
    assert namespace is not None
    judged.merge("namespace", judged.namespace, {"metadata": {"labels": {LABEL: None}}})
    job = with_pod({"hostPID": True})
    job["metadata"]["name"] = "old"
    judged.wait("the policy to be out of force", lambda: stated_of(judged, job) == "")
    judged.apply(job)
    judged.merge(
        "namespace", judged.namespace, {"metadata": {"labels": {LABEL: namespace["metadata"]["labels"][LABEL]}}}
    )
    judged.wait("the policy to be in force", lambda: stated_of(judged, with_pod({"hostIPC": True})))

    judged.merge("rljob", "old", {"metadata": {"labels": {"a": "b"}}})
    judged.merge("rljob", "old", {"status": {"phase": "Pending"}}, subresource="status")
    more = json.dumps({"spec": {"suspend": True}})
    with pytest.raises(AssertionError, match="hostNetwork, hostPID and hostIPC are not allowed here"):
        judged("patch", "rljob", "old", "--type=merge", "-p", more)
    judged("delete", "rljob", "old", "--cascade=foreground", "--timeout=100s")


def test_the_switch_is_off_by_default_and_serves_the_operators_namespaces() -> None:
    assert not [each for each in objects(render()) if each["kind"] in KINDS]
    made = policy("", "--set", "namespaces={a,b}")
    (selector,) = (each["spec"]["matchResources"]["namespaceSelector"] for each in made if "policyName" in each["spec"])
    wanted = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}
    assert selector == {"matchExpressions": [wanted]}


def test_a_value_that_is_not_known_is_refused() -> None:
    message = refusal("template", "demo", str(CHART), "--set", "admissionPolicy.action=Ignore")
    assert "action" in message


def test_what_the_administrator_takes_away_is_not_his(tmp_path: Path) -> None:
    gone = {"$patch": "delete"}
    brought = {
        "containers": [
            {"name": "mine", **gone},
            {"name": "worker", "volumeMounts": [{"mountPath": "/dev/shm", **gone}]},
        ],
        "volumes": [{"name": "scratch", **gone}],
        "imagePullSecrets": [{"name": "registry", **gone}],
    }
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"workloads": {"podTemplate": {"spec": brought}}}))
    (rules, _) = policy("", "--values", str(values))
    (rules_without, _) = policy("")
    assert rules["spec"] == rules_without["spec"]


@pytest.mark.parametrize("name", ["serviceAccount", "serviceAccountName"])
def test_either_name_of_the_administrators_account_is_both(tmp_path: Path, name: str) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"workloads": {"podTemplate": {"spec": {name: "mesh"}}}}))
    (rules, _) = policy("", "--values", str(values))
    (rule,) = (each for each in rules["spec"]["validations"] if "workloads.podTemplate" in each["message"])
    assert {"serviceAccount", "serviceAccountName"} <= set(re.findall(r'"(\w+)"', rule["expression"]))
