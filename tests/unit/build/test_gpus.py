"""What a pod asks of its node for its ranks: devices of the resource that the job names, and room for weights."""

from typing import Any

import pytest

from rljob_api.status import RestartStatus, RLJobStatus
from rljob_operator.build import MissingApi, Platform
from rljob_operator.build.containers import times
from tests.unit.build.jobs import build, changed, container, quickstart

_ACTOR = "Deployment/quickstart-actor"
_SMALL: dict[str, Any] = {"training": {"microBatchSize": 1}}
_ONE_NODE = "checkpoint.volume.accessMode: ReadWriteOnce lets one node mount the volume, but the actor has 2 pods"


def _shared_memory(**fields: Any) -> Any:
    job = changed(quickstart(), **fields)
    volumes = build(job)[_ACTOR]["spec"]["template"]["spec"]["volumes"]
    return next(volume["emptyDir"]["sizeLimit"] for volume in volumes if volume["name"] == "shm")


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.10gb"])
def test_devices_are_asked_for_by_the_name_of_their_resource(resource: str) -> None:
    job = changed(quickstart(), **_SMALL, roles={"actor": {"gpus": 4, "gpuResource": resource}})
    resources = container(build(job)[_ACTOR], "worker")["resources"]
    assert resources["requests"][resource] == resources["limits"][resource] == "4"
    assert len(resources["limits"]) == 1


def test_a_pod_of_several_ranks_has_room_for_the_weights_of_each() -> None:
    assert _shared_memory() == "16Gi"
    assert _shared_memory(**_SMALL, roles={"actor": {"gpus": 4}}) == "64Gi"
    assert _shared_memory(**_SMALL, roles={"actor": {"ranksPerPod": 2}}) == "32Gi"
    limited = {"actor": {"ranksPerPod": 2, "resources": {"limits": {"memory": "8Gi"}}}}
    assert _shared_memory(**_SMALL, roles=limited) == "8Gi"


def test_an_engine_of_several_gpus_has_room_for_its_processes() -> None:
    engine = {"kind": "SGLang", "tensorParallel": 4}
    objects = build(changed(quickstart(), **_SMALL, roles={"rollout": {"gpus": 8, "engine": engine}}))
    worker = container(objects["Deployment/quickstart-rollout"], "worker")
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "8"
    volumes = objects["Deployment/quickstart-rollout"]["spec"]["template"]["spec"]["volumes"]
    assert next(volume for volume in volumes if volume["name"] == "shm")["emptyDir"]["sizeLimit"] == "128Gi"


@pytest.mark.parametrize(
    ("amount", "factor", "expected"),
    [("16Gi", 1, "16Gi"), ("16Gi", 8, "128Gi"), ("1.5Gi", 4, "6Gi"), ("500m", 3, "1500m"), ("100", 2, "200")],
)
def test_an_amount_several_times(amount: str, factor: int, expected: str) -> None:
    assert times(amount, factor) == expected


def test_every_trainer_pod_mounts_the_checkpoint_volume() -> None:
    shared = {"volume": {"accessMode": "ReadWriteMany"}}
    job = changed(quickstart(), **_SMALL, roles={"actor": {"replicas": 2}}, checkpoint=shared)
    pod = build(job)[_ACTOR]["spec"]["template"]["spec"]
    assert {"name": "run", "persistentVolumeClaim": {"claimName": "quickstart-checkpoints"}} in pod["volumes"]
    assert "affinity" not in pod


def test_a_volume_of_one_node_for_two_trainer_pods_is_refused_unless_the_job_has_begun() -> None:
    job = changed(quickstart(), **_SMALL, roles={"actor": {"replicas": 2}})
    with pytest.raises(ValueError, match=_ONE_NODE):
        build(job)
    begun = RLJobStatus(restart=RestartStatus(epoch=1))
    assert "affinity" in build(job, begun)[_ACTOR]["spec"]["template"]["spec"]


def test_pretended_devices_may_be_set_by_a_template() -> None:
    env = [{"name": "RLJOB_DEVICES", "value": "fake:2"}]
    template = {"spec": {"containers": [{"name": "worker", "env": env}]}}
    job = changed(quickstart(), roles={"actor": {"template": template}})
    assert env[0] in container(build(job)[_ACTOR], "worker")["env"]


_WITH_CLAIMS = Platform(device_claims=True)
_CLAIMING = {"actor": {"gpus": 2, "deviceClass": "gpu.example"}, "rollout": {"gpus": 1, "gpuResource": "amd.com/gpu"}}


def test_devices_of_a_class_are_claimed_by_each_pod_one_for_each_rank() -> None:
    objects = build(changed(quickstart(), **_SMALL, roles=_CLAIMING), platform=_WITH_CLAIMS)
    (name,) = [name for name in objects if name.startswith("ResourceClaimTemplate/quickstart-actor-gpus-")]
    requests = objects[name]["spec"]["spec"]["devices"]["requests"]
    asked = {"deviceClassName": "gpu.example", "allocationMode": "ExactCount", "count": 1}
    assert requests == [{"name": "gpu-0", "exactly": asked}, {"name": "gpu-1", "exactly": asked}]

    pod, worker = objects[_ACTOR]["spec"]["template"]["spec"], container(objects[_ACTOR], "worker")
    template = name.removeprefix("ResourceClaimTemplate/")
    assert pod["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": template}]
    assert worker["resources"]["claims"] == [{"name": "gpus"}]
    assert not any("gpu" in resource for resource in worker["resources"].get("limits", {}))

    counted = container(objects["Deployment/quickstart-rollout"], "worker")["resources"]
    assert counted["limits"]["amd.com/gpu"] == "1"
    assert "claims" not in counted


def test_another_number_of_devices_is_another_template_since_its_spec_cannot_change() -> None:
    def template(**fields: object) -> str:
        roles = {"actor": {"gpus": 2, "deviceClass": "gpu.example", **fields}}
        objects = build(changed(quickstart(), **_SMALL, roles=roles), platform=_WITH_CLAIMS)
        pod = objects[_ACTOR]["spec"]["template"]["spec"]
        return str(pod["resourceClaims"][0]["resourceClaimTemplateName"])

    assert template() == template(threads=2)
    assert len({template(), template(gpus=4), template(deviceClass="mig.example")}) == 3


def test_a_cluster_without_the_api_is_named_with_its_cure() -> None:
    with pytest.raises(MissingApi, match=r"spec\.roles\.actor\.deviceClass: gpu\.example needs the API resource"):
        build(changed(quickstart(), **_SMALL, roles=_CLAIMING))
