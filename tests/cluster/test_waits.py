"""Each wait is named: what a real cluster refuses, does not have, or cannot start, is the reason of Ready.

The jobs here never run: each is kept by something else, and no one waits for a limit. They are of one namespace and one
operator, each of a name of its own; their workers sleep.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import Cluster, idle_workload_options
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, make_small_job

NOWHERE = {"spec": {"nodeSelector": {"example.org/none": "none"}}}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def kubectl(cluster: Cluster, module_kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """Of the namespace that the operator serves."""
    install_definition(cluster.kubeconfig)
    with tempfile.TemporaryDirectory(prefix="rljob-idle-") as idle:
        workloads = idle_workload_options(Path(idle))
        with OperatorProcess(
            cluster, module_kubectl.namespace, tmp_path_factory.mktemp("operator"), workloads=workloads
        ):
            yield module_kubectl


def wait_for_reason(job: ClusterJob, reason: str, *parts: str, times: int = 1) -> str:
    """Until Ready says it, with these words, the last of them so many times; its sentence.

    All of one status: a kubelet has other words a moment later, and the operator says those.
    """

    def sentence() -> str | None:
        status = job.status()
        ready: Object = next((each for each in status.get("conditions", []) if each["type"] == "Ready"), {})
        message = str(ready.get("message", ""))
        is_stated = ready.get("reason") == reason and all(text in message for text in parts)
        if not is_stated or message.count(parts[-1]) < times:
            return None
        assert status["reason"] == reason, status
        return message

    return job.kubectl.wait(f"Ready of {job.name} to be False for {reason} with {parts}", sentence)


def with_template(name: str, role: str, template: Object, **spec: Any) -> Object:
    return make_small_job(name, roles={role: {"template": template}}, **spec)


def quota(**hard: str) -> Object:
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": {"hard": hard}}


def wait_in_force(kubectl: Kubectl) -> None:
    kubectl.wait_for("resourcequota", "small", "to be counted", lambda it: it.get("status", {}).get("hard"))


@pytest.mark.long
def test_a_quota_of_pods_is_named_for_workers_and_for_redis(kubectl: Kubectl) -> None:
    kubectl.apply(quota(pods="0"))
    wait_in_force(kubectl)
    job = ClusterJob(kubectl, make_small_job("pods")).apply()
    refused = "is forbidden: exceeded quota: small"
    # Deployments say it in a condition, StatefulSets in an Event.
    text = ("actor-0 (", "coordinator (", "control (", "storage-0 (", refused)
    wait_for_reason(job, "FailedCreate", *text, times=4)

    kubectl.delete("resourcequota", "small")
    job.wait("its pods", lambda: len(job.pods()) == len(job.status()["roles"]))
    kubectl.delete("rljob", job.name)


def test_objects_that_the_api_server_does_not_take_are_named(kubectl: Kubectl) -> None:
    kubectl.apply(quota(**{"count/deployments.apps": "2"}))
    wait_in_force(kubectl)
    job = ClusterJob(kubectl, make_small_job("objects")).apply()
    wait_for_reason(job, "ObjectRefused", "Deployment objects-", "was refused", "exceeded quota: small")
    assert job.wait_event("ObjectRefused")["type"] == "Warning"
    kubectl.delete("resourcequota", "small")
    kubectl.delete("rljob", job.name)


@pytest.mark.long
def test_a_secret_that_is_refused_keeps_the_whole_job_and_is_named(kubectl: Kubectl) -> None:
    kubectl.apply(quota(**{"count/secrets": "0"}))
    wait_in_force(kubectl)
    job = ClusterJob(kubectl, make_small_job("secrets")).apply()
    wait_for_reason(job, "ObjectRefused", "Secret secrets-secret was refused", "exceeded quota: small")
    assert job.status()["phase"] == "Pending"
    assert job.wait_event("ObjectRefused")["type"] == "Warning"
    kubectl.delete("resourcequota", "small")
    job.wait("the job to begin", lambda: job.epoch() == 1)
    kubectl.delete("rljob", job.name)


def test_an_image_that_does_not_exist_is_named_with_the_kubelets_message(kubectl: Kubectl) -> None:
    template = {"spec": {"containers": [{"name": "worker", "image": "none.invalid/no-such-image:1"}]}}
    template["spec"]["containers"][0]["imagePullPolicy"] = "Always"
    job = ClusterJob(kubectl, with_template("image", "actor", template)).apply()
    wait_for_reason(job, "ImagePullBackOff", "actor-0 (", "none.invalid/no-such-image:1")
    kubectl.delete("rljob", job.name)


@pytest.mark.long
def test_an_init_container_that_fails_is_named(kubectl: Kubectl) -> None:
    fetch = {"name": "fetch", "image": "none.invalid/no-such-image:1", "imagePullPolicy": "Always"}
    job = ClusterJob(kubectl, with_template("init", "actor", {"spec": {"initContainers": [fetch]}})).apply()
    wait_for_reason(job, "Init:ImagePullBackOff", "actor-0 (init container fetch: ")
    kubectl.delete("rljob", job.name)


def test_what_nodes_lack_comes_before_who_waits_to_be_beside_it_and_is_an_event(kubectl: Kubectl) -> None:
    far_too_much = {"actor": {"resources": {"requests": {"cpu": "8000"}}}}
    job = ClusterJob(kubectl, make_small_job("nowhere", roles=far_too_much)).apply()
    beside = "didn't match pod affinity rules"
    message = wait_for_reason(job, "Unschedulable", "actor-0 (0/1 nodes are available: 1 Insufficient cpu", beside)
    assert message.index("Insufficient cpu") < message.index(beside), message
    reported = job.wait_event("Unschedulable")
    assert (reported["type"], "Insufficient cpu" in reported["note"]) == ("Warning", True)
    assert "Insufficient cpu" in kubectl("describe", "rljob", job.name).rpartition("Events:")[2]
    kubectl.delete("rljob", job.name)


@pytest.mark.long
def test_a_scheduler_that_does_not_exist_is_named(kubectl: Kubectl) -> None:
    job = ClusterJob(kubectl, make_small_job("unseen", scheduling={"schedulerName": "no-such"})).apply()
    wait_for_reason(job, "NoScheduler", "actor-0", "no scheduler named no-such has looked at it")
    kubectl.delete("rljob", job.name)


@pytest.mark.long
def test_a_template_that_the_api_server_never_takes_is_refused_with_its_sentence(kubectl: Kubectl) -> None:
    tries: list[tuple[str, Object, str]] = [
        ("never-a", {"hostNetwork": "true"}, "hostNetwork"),
        ("never-b", {"ephemeralContainers": [{"name": "d", "image": "i"}]}, "ephemeral containers not allowed"),
        ("never-c", {"noSuchField": 1}, "unknown field"),
    ]
    jobs = [ClusterJob(kubectl, with_template(name, "actor", {"spec": spec})).apply() for name, spec, _ in tries]
    for job, (name, _, text) in zip(jobs, tries, strict=True):
        refused = job.wait_event("ObjectRefused")
        accepted = job.condition("Accepted")
        assert (accepted["status"], accepted["reason"]) == ("False", "ObjectRefused")
        assert accepted["message"].startswith(f"Deployment {name}-actor was refused: ")
        assert text in accepted["message"]
        assert (job.status()["reason"], refused["type"]) == ("ObjectRefused", "Warning")
        assert kubectl.all("deployments,statefulsets,secrets,configmaps", f"rljob.dev/job={name}") == []
    jobs[0].change({"roles": {"actor": {"template": None}}})
    jobs[0].wait("the job to begin", lambda: jobs[0].epoch() == 1)
    kubectl("delete", "rljob", *(job.name for job in jobs), "--wait=false")


@pytest.mark.long
def test_a_class_of_storage_that_does_not_exist_is_named(kubectl: Kubectl) -> None:
    job = ClusterJob(
        kubectl, make_small_job("storage", checkpoint={"volume": {"size": "1Gi", "storageClassName": "no-such"}})
    ).apply()
    wait_for_reason(
        job, "ProvisioningFailed", "actor-0 (", "PersistentVolumeClaim storage-checkpoints", '"no-such" not found'
    )
    kubectl.delete("rljob", job.name)


@pytest.mark.long
def test_a_volume_that_cannot_be_mounted_is_named_by_the_event_alone(kubectl: Kubectl) -> None:
    template = {
        "spec": {
            "containers": [{"name": "worker", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}],
            "volumes": [{"name": "x", "secret": {"secretName": "no-such"}}],
        }
    }
    job = ClusterJob(kubectl, with_template("mount", "rollout", template)).apply()
    wait_for_reason(job, "FailedMount", "rollout-0 (", 'secret "no-such" not found')
    kubectl.delete("rljob", job.name)


def test_what_a_container_names_and_is_not_there_is_named(kubectl: Kubectl) -> None:
    reference = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "no-such", "key": "token"}}}
    template = {"spec": {"containers": [{"name": "worker", "env": [reference]}]}}
    job = ClusterJob(kubectl, with_template("names", "rollout", template)).apply()
    wait_for_reason(job, "CreateContainerConfigError", "rollout-0 (", 'secret "no-such" not found')
    kubectl.delete("rljob", job.name)


def test_a_policy_that_refuses_pods_is_named_with_its_sentence(kubectl: Kubectl) -> None:
    name = kubectl.namespace
    kind = {"apiVersion": "admissionregistration.k8s.io/v1"}
    matches = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    policy = {
        **kind,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [matches]},
            "validations": [{"expression": "false", "message": "nobody may have pods today"}],
        },
    }
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
    binding = {
        **kind,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": here},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    kubectl.apply(policy, binding)
    try:
        kubectl.wait("the policy to be in force", lambda: is_refused(kubectl, pod))
        job = ClusterJob(kubectl, make_small_job("policy")).apply()
        wait_for_reason(job, "FailedCreate", "actor-0 (", "nobody may have pods today")
    finally:
        kubectl.delete("validatingadmissionpolicybinding", name)
        kubectl.delete("validatingadmissionpolicy", name)
    kubectl.delete("rljob", job.name)


def is_refused(kubectl: Kubectl, manifest: Object) -> bool:
    try:
        return bool(kubectl.refusal(manifest))
    except AssertionError:
        return False


def test_a_name_that_is_used_again_states_that_it_waits_for_the_earlier_jobs_pods(kubectl: Kubectl) -> None:
    # A finalizer stands for a pod that takes its time to end: nothing else holds it for longer than its grace period.
    keeps = {"metadata": {"finalizers": ["example.org/keeps"]}}
    job = ClusterJob(kubectl, with_template("again", "advantages", NOWHERE)).apply()
    job.wait("its pods", lambda: job.pods(role="advantages"))
    (pod,) = (each["metadata"]["name"] for each in job.pods(role="advantages"))
    kubectl.merge("pod", pod, keeps)
    kubectl.delete("rljob", job.name)
    kubectl.wait_gone("rljob", job.name)
    job.apply()
    wait_for_reason(job, "EarlierJob", "pods of an earlier job of this name are still there", pod)
    kubectl.merge("pod", pod, {"metadata": {"finalizers": None}})
    job.wait("the job to begin", lambda: job.epoch() >= 1)
    kubectl.delete("rljob", job.name)
