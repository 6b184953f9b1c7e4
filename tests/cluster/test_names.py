"""What is not a job's own is never touched: objects that another has made under the names of a job's objects.

The jobs here ask for a node that is not there: their pods are made and cost nothing, and none may be made too early.
"""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api import cluster as names
from rljob_api.cluster import LABEL_JOB
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import REPOSITORY, Cluster, Node
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import leaves_nothing
from tests.cluster.harness.volumes import folder_of_claim

NOWHERE = {"podTemplate": {"spec": {"nodeSelector": {"example.org/none": "none"}}}}
SELECTOR = {"app": "theirs"}
POD = {"metadata": {"labels": SELECTOR}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
MADE = "secret,configmap,service,persistentvolumeclaim,deployment,statefulset,networkpolicy,poddisruptionbudget"
VOLUME: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}

THEIRS: dict[str, Object] = {
    "secret": {"apiVersion": "v1", "kind": "Secret", "stringData": {"theirs": "1"}},
    "job": {"apiVersion": "v1", "kind": "ConfigMap", "data": {"theirs": "1"}},
    "control": {
        "apiVersion": "v1",
        "kind": "Service",
        "spec": {"selector": SELECTOR, "ports": [{"port": 80}]},
    },
    "checkpoints": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": VOLUME},
    "data-control-0": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": VOLUME},
    "advantages": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {"replicas": 0, "selector": {"matchLabels": SELECTOR}, "template": POD},
    },
    "storage": {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "spec": {"replicas": 0, "serviceName": "theirs", "selector": {"matchLabels": SELECTOR}, "template": POD},
    },
    "workers": {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"podSelector": {}}},
    "": {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "spec": {"minAvailable": 0, "selector": {"matchLabels": SELECTOR}},
    },
}
"""What comes after a job's name -> someone's object of that name."""
OTHERS = ("checkpoints", "job", "advantages")
"""Those that are also made with the job's label, and with an owner."""


@pytest.fixture(autouse=True)
def crd(cluster: Cluster) -> None:
    install_definition(cluster.kubeconfig)


@pytest.fixture
def operator(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    with OperatorProcess(cluster, namespace, tmp_path / "operator", workloads=NOWHERE) as process:
        yield process


def make_job(name: str, **spec: Any) -> Object:
    job: Object = yaml.safe_load((REPOSITORY / "examples/quickstart.yaml").read_text())
    job["metadata"]["name"] = name
    job["spec"] |= {"transferQueue": {"redis": {"persistence": {"kind": "Claim", "size": "1Gi"}}}, **spec}
    return job


def theirs(part: str, job: str, how: str, owner_uid: str) -> Object:
    """Someone's object of a name of `job`."""
    name = f"data-{job}-control-0" if part == "data-control-0" else f"{job}-{part}".rstrip("-")
    metadata: Object = {"name": name}
    if how != "bare":
        metadata["labels"] = {LABEL_JOB: job, "app.kubernetes.io/managed-by": "rljob-operator"}
    if how == "owned":
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner_uid, "controller": True}
        metadata["ownerReferences"] = [owner]
    return {**THEIRS[part], "metadata": metadata}


def taken(job: Object | None) -> str:
    """What the condition says is taken, or nothing."""
    conditions = (job or {}).get("status", {}).get("conditions", [])
    accepted: Object = next((each for each in conditions if each["type"] == "Accepted"), {})
    is_refused = (accepted.get("status"), accepted.get("reason")) == ("False", "NameTaken")
    return str(accepted["message"]) if is_refused else ""


def is_accepted(job: Object) -> bool:
    conditions = job.get("status", {}).get("conditions", [])
    return any((each["type"], each["status"]) == ("Accepted", "True") for each in conditions)


def without_controllers(found: Object) -> Object:
    """What its maker wrote: controllers bind a claim, number a Deployment's revision, and write each status, later."""
    metadata = {key: value for key, value in found["metadata"].items() if key != "resourceVersion"}
    assert "rljob-operator" not in {each["manager"] for each in metadata.pop("managedFields")}
    notes = {key: value for key, value in metadata.pop("annotations", {}).items() if "kubernetes.io/" not in key}
    spec = {key: value for key, value in found.get("spec", {}).items() if key != "volumeName"}
    rest = {key: value for key, value in found.items() if key not in ("status", "spec")}
    return {**rest, "spec": spec, "metadata": {**metadata, "annotations": notes}}


def test_whatever_somebody_else_has_made_is_named_and_left_as_it_is(
    kubectl: Kubectl, operator: OperatorProcess
) -> None:
    kubectl("create", "configmap", "owner")
    owner = kubectl.get("configmap", "owner")
    assert owner is not None
    ways = [*((part, "bare") for part in THEIRS), *((part, way) for part in OTHERS for way in ("labelled", "owned"))]
    rows = {
        f"{way}-{n}": theirs(part, f"{way}-{n}", way, owner["metadata"]["uid"]) for n, (part, way) in enumerate(ways)
    }
    kubectl.apply(*rows.values())
    before = there(kubectl, rows.values())
    kubectl.apply(*(leaves_nothing(make_job(job)) for job in rows))

    def all_are_refused() -> bool:
        found = json.loads(kubectl("get", "rljob", "-o", "json"))["items"]
        message = {each["metadata"]["name"]: taken(each) for each in found}
        return all(f"{each['kind']} {each['metadata']['name']}" in message[job] for job, each in rows.items())

    kubectl.wait("all jobs to say what is taken", all_are_refused)
    mine = {each["metadata"]["name"] for each in rows.values()} | {"owner", "kube-root-ca.crt"}
    assert {each["metadata"]["name"] for each in kubectl.all("deployment,statefulset,pod")} <= mine
    assert there(kubectl, rows.values()) == before

    kubectl("delete", "rljob", "--all")
    kubectl.wait("the jobs' own objects to be gone", lambda: set(left(kubectl)) <= mine)
    assert there(kubectl, rows.values()) == before
    assert operator.exit_code is None


def there(kubectl: Kubectl, manifests: Collection[Object]) -> dict[tuple[str, str], Object]:
    """What the API server has of them, but for what controllers write."""
    names = {(each["kind"], each["metadata"]["name"]) for each in manifests}
    items = json.loads(kubectl("get", MADE, "-o", "json", "--show-managed-fields"))["items"]
    found = {name: each for each in items if (name := (each["kind"], each["metadata"]["name"])) in names}
    assert set(found) == names
    return {name: without_controllers(each) for name, each in found.items()}


def made(kubectl: Kubectl) -> str:
    """What a job is made of here: a PodMonitor too, where another test has brought its CRD."""
    monitors = kubectl("get", "crd", "podmonitors.monitoring.coreos.com", "--ignore-not-found", "-o", "name")
    return f"{MADE},podmonitor" if monitors else MADE


def left(kubectl: Kubectl) -> list[str]:
    return [each["metadata"]["name"] for each in kubectl.all(made(kubectl))]


def test_a_volume_with_data_survives_and_can_be_used(kubectl: Kubectl, node: Node, operator: OperatorProcess) -> None:
    claim = names.checkpoint_claim_name("kept")
    kubectl.apply(theirs("checkpoints", "kept", "labelled", ""))
    file = folder_of_claim(kubectl, claim) / "precious"
    file.write_text("theirs")
    kubectl.apply(make_job("kept"))
    refused = kubectl.wait_for("rljob", "kept", "to be refused", taken)
    assert f"set spec.checkpoint.volume.claimName to {claim}" in taken(refused)
    kubectl("delete", "rljob", "kept")
    kubectl.wait("the job's own objects to be gone", lambda: set(left(kubectl)) <= {claim, "kube-root-ca.crt"})

    kubectl.apply(make_job("kept", checkpoint={"volume": {"claimName": claim}}))
    kubectl.wait_for("rljob", "kept", "to be accepted", is_accepted)
    kubectl.wait("its pods", lambda: len(kubectl.all("pod", f"{LABEL_JOB}=kept")) > 5)
    kubectl("delete", "rljob", "kept")
    kubectl.wait("the job's own objects to be gone", lambda: set(left(kubectl)) <= {claim, "kube-root-ca.crt"})
    assert file.read_text() == "theirs"


@pytest.mark.long
def test_what_is_left_of_a_job_without_its_objects_is_named_until_it_is_gone(
    kubectl: Kubectl, operator: OperatorProcess
) -> None:
    kubectl.apply(make_job("cut"))
    pods = f"{LABEL_JOB}=cut"
    kubectl.wait("its pods", lambda: len(kubectl.all("pod", pods)) > 5)
    kubectl("delete", "rljob", "cut", "--cascade=orphan")
    kubectl.apply(make_job("cut"))
    refused = kubectl.wait_for("rljob", "cut", "to be refused", taken)
    assert "Secret cut-secret" in taken(refused) or " more" in taken(refused)

    kubectl("delete", "deployment,statefulset", "-l", pods, "--cascade=orphan")
    kubectl("delete", made(kubectl), "-l", pods)
    refused = kubectl.wait_for(
        "rljob", "cut", "to name pods", lambda job: "ReplicaSet cut-actor-" in taken(job) and "Pod cut-" in taken(job)
    )
    uids = {each["metadata"]["uid"] for each in kubectl.all("pod", pods)}
    assert len(uids) > 5
    kubectl("delete", "replicaset", "-l", pods, "--cascade=orphan")
    kubectl.wait_for("rljob", "cut", "to name pods alone", lambda job: "ReplicaSet" not in taken(job) and taken(job))
    assert {each["metadata"]["uid"] for each in kubectl.all("pod", pods)} == uids
    assert not kubectl.all(made(kubectl), pods)

    kubectl("delete", "pod", "-l", pods)
    kubectl.wait_for("rljob", "cut", "to be accepted", is_accepted)
    kubectl.wait("its own pods", lambda: len(kubectl.all("pod", pods)) > 5)


@pytest.mark.long
def test_a_name_that_is_taken_later_is_not_taken_back(kubectl: Kubectl, operator: OperatorProcess) -> None:
    parts = {"control": "bare", "job": "labelled", "advantages": "bare"}
    kubectl.apply(make_job("late"))
    pods = f"{LABEL_JOB}=late"
    kubectl.wait("its pods", lambda: len(kubectl.all("pod", pods)) > 5)
    uids = {
        each["metadata"]["uid"] for each in kubectl.all("pod", pods) if "advantages" not in each["metadata"]["name"]
    }
    new = [theirs(part, "late", how, "") for part, how in parts.items()]
    for each in new:  # the last of the job's objects has pods, and others of it have theirs earlier
        kubectl.wait_for(each["kind"], each["metadata"]["name"], "to be there", lambda found: found)
    operator.pause()
    for each in new:
        kubectl("delete", each["kind"], each["metadata"]["name"])
    kubectl.apply(*new)
    before = there(kubectl, new)
    operator.resume()

    message = [f"{each['kind']} {each['metadata']['name']}" for each in new]
    kubectl.wait_for("rljob", "late", "to be refused", lambda job: all(text in taken(job) for text in message))
    kubectl.merge("rljob", "late", {"spec": {"rollout": {"numRollouts": 77}}})
    kubectl.wait_for(
        "rljob",
        "late",
        "to be looked at again",
        lambda job: job["status"]["observedGeneration"] == job["metadata"]["generation"],
    )
    assert there(kubectl, new) == before
    assert uids <= {each["metadata"]["uid"] for each in kubectl.all("pod", pods)}

    for each in new:
        kubectl("delete", each["kind"], each["metadata"]["name"])
    kubectl.wait_for("rljob", "late", "to be accepted again", is_accepted)
    for each in new:
        kubectl.wait_for(
            each["kind"].lower(),
            each["metadata"]["name"],
            "to be the job's",
            lambda found: found["metadata"].get("ownerReferences", [{}])[0].get("kind") == "RLJob",
        )
