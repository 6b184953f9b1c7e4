"""The claim of a job's checkpoints as its spec changes: it grows or says why not, and goes with its job or stays.

The jobs here ask for a node that is not there: only their claims matter. No volume of this cluster grows by itself: the
test does what the resizer of a storage vendor does.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from rljob_api.cluster import checkpoint_claim_name
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.kubectl import Kubectl, KubectlFailed, Object
from tests.cluster.harness.machine import Cluster
from tests.cluster.harness.operator import OperatorProcess
from tests.cluster.harness.rljob import ClusterJob, make_small_job

NOWHERE = {"podTemplate": {"spec": {"nodeSelector": {"example.org/none": "none"}}}}


@pytest.fixture(scope="module")
def kubectl(module_kubectl: Kubectl) -> Kubectl:
    """Of one namespace, with one operator: each test has a job of its own name."""
    return module_kubectl


@pytest.fixture(scope="module", autouse=True)
def operator(cluster: Cluster, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    install_definition(cluster.kubeconfig)
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(cluster, kubectl.namespace, folder, workloads=NOWHERE) as process:
        yield process


@pytest.fixture(scope="module")
def classes(kubectl: Kubectl) -> Iterator[dict[bool, str]]:
    """Whether volumes of a class may grow -> its name."""
    names = {may_grow: f"{'grows' if may_grow else 'stays'}-{kubectl.namespace[-6:]}" for may_grow in (True, False)}
    kind: Object = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "rljob.test/folder"}
    kubectl.apply(
        *({**kind, "metadata": {"name": name}, "allowVolumeExpansion": grows} for grows, name in names.items())
    )
    yield names
    kubectl("delete", "storageclass", *names.values())


def apply(kubectl: Kubectl, name: str, **volume: Any) -> ClusterJob:
    return ClusterJob(kubectl, make_small_job(name, checkpoint={"volume": {"size": "1Gi", **volume}})).apply()


def resize(job: ClusterJob, size: str) -> None:
    job.change({"checkpoint": {"volume": {"size": size}}})


def claim(job: ClusterJob, what: str, holds: Any) -> Object:
    """The job's, once something holds of it."""
    return job.kubectl.wait_for("persistentvolumeclaim", checkpoint_claim_name(job.name), what, holds)


def summary(job: ClusterJob) -> str:
    """The condition of its volume."""
    found = job.condition("VolumeExpanded")
    return f"{found['status']} {found['reason']}: {found['message']}" if found else ""


def _spec(found: Object) -> str:
    return str(found["metadata"]["annotations"]["rljob.dev/spec"])


def is_bound(found: Object) -> bool:
    return bool(found["status"].get("capacity"))


def test_a_larger_size_expands_the_claim(kubectl: Kubectl, classes: dict[bool, str]) -> None:
    job = apply(kubectl, "larger", storageClassName=classes[True])
    volume = claim(job, "to be bound", is_bound)["spec"]["volumeName"]
    resize(job, "2Gi")
    claim(job, "to ask for more", lambda found: found["spec"]["resources"]["requests"]["storage"] == "2Gi")
    wanted = "False Expanding: the volume of the claim larger-checkpoints has 1Gi, and is to have 2Gi"
    job.wait("that it is expanding", lambda: summary(job).startswith(wanted))

    kubectl.merge("persistentvolume", volume, {"spec": {"capacity": {"storage": "2Gi"}}})
    grown = {"status": {"capacity": {"storage": "2Gi"}, "conditions": None}}
    kubectl.merge("persistentvolumeclaim", "larger-checkpoints", grown, subresource="status")
    wanted = "True Expanded: the volume of the claim larger-checkpoints has 2Gi"
    job.wait("that it is expanded", lambda: summary(job) == wanted)

    with pytest.raises(KubectlFailed, match=r"checkpoint.volume.size: .*no volume can be made smaller.*Set it back"):
        resize(job, "1.5Gi")


def test_a_class_that_does_not_grow_is_reported_and_keeps_nothing_else_from_going_on(
    kubectl: Kubectl, classes: dict[bool, str]
) -> None:
    job = apply(kubectl, "refused", storageClassName=classes[False])
    claim(job, "to be bound", is_bound)
    resize(job, "2Gi")
    wanted = (
        "False ExpansionRefused: checkpoint.volume.size: the claim refused-checkpoints stays at 1Gi, since the API "
    )
    job.wait("the refusal", lambda: summary(job).startswith(wanted))
    assert "allowVolumeExpansion" in summary(job)

    job.change({"rollout": {"numRollouts": 77}})
    claim(job, "to keep the new spec", lambda found: '"numRollouts":77' in _spec(found))
    assert job.is_true("Accepted")


def test_what_becomes_of_the_claim_may_change_while_the_job_exists(kubectl: Kubectl) -> None:
    job = apply(kubectl, "goes")
    claim(job, "to stay", lambda found: "ownerReferences" not in found["metadata"])
    uid = job.object()["metadata"]["uid"]
    job.change({"checkpoint": {"volume": {"onDelete": "Delete"}}})
    owned = claim(job, "to go with its job", lambda found: "ownerReferences" in found["metadata"])
    assert [each["uid"] for each in owned["metadata"]["ownerReferences"]] == [uid]
    job.change({"checkpoint": {"volume": {"onDelete": "Retain"}}})
    claim(job, "to stay again", lambda found: "ownerReferences" not in found["metadata"])
    job.change({"checkpoint": {"volume": {"onDelete": "Delete"}}})
    claim(job, "to go with its job", lambda found: "ownerReferences" in found["metadata"])
    kubectl("delete", "rljob", "goes")
    kubectl.wait_gone("persistentvolumeclaim", "goes-checkpoints")
