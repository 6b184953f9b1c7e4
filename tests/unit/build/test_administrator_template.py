"""No job changes what the administrator's template brings, by whatever field and whatever trick of merging."""

from contextlib import suppress
from typing import Any

import pytest

from rljob_operator.options import OperatorOptions
from tests.unit.build.attacks import ATTACKS, WORKLOADS, Attack, administrators_part
from tests.unit.build.jobs import build, changed, pod_templates, quickstart
from tests.unit.build.reaching_attacks import REACHING

_OPTIONS = OperatorOptions.model_validate({"workloads": WORKLOADS})
_WHOSE = "belongs to the administrator (the operator's workloads.podTemplate brings it), and no job changes it"


def _own(name: str) -> str:
    if name.startswith("StatefulSet"):
        return "redis"
    return "coordinator" if name.endswith("coordinator") else "worker"


def _administrators(**fields: Any) -> dict[str, str]:
    templates = pod_templates(build(changed(quickstart(), **fields), options=_OPTIONS))
    return {name: administrators_part(template, _own(name)) for name, template in templates.items()}


_UNTOUCHED = _administrators()


@pytest.mark.parametrize("attack", [*ATTACKS, *REACHING], ids=lambda attack: attack.name)
def test_an_attack_is_refused_or_changes_nothing_of_the_administrators(attack: Attack) -> None:
    if not attack.by_build:
        assert _administrators(**attack.spec) == _UNTOUCHED
        return
    with pytest.raises(ValueError, match=r"^(roles|infrastructure|checkpoint|scheduling|telemetry)\."):
        _administrators(**attack.spec)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("the sidecar's command", f"roles.rollout.template.spec.containers[mesh]: {_WHOSE}."),
        ("the sidecar in the coordinator's pod", f"infrastructure.template.spec.containers[mesh]: {_WHOSE}."),
        (
            "the mount made writable",
            f"roles.rollout.template.spec.containers[worker].volumeMounts[/node/logs]: {_WHOSE}.",
        ),
        ("a mount below the administrator's", "volumeMounts[/models/base]: would hide /models, which belongs to"),
        (
            "the claim as the checkpoint volume",
            "checkpoint.volume.claimName: the PersistentVolumeClaim all-models is one that the operator's"
            " workloads.podTemplate names. Name another one.",
        ),
        ("the sidecar's processes", "spec.shareProcessNamespace: reaches into the container mesh, mesh-init, which"),
        ("another team's folder by a variable of a variable", "FOLDER, TEAM says which folder is mounted, and belongs"),
    ],
)
def test_what_is_refused_is_named(name: str, sentence: str) -> None:
    (attack,) = (each for each in ATTACKS if each.name == name)
    with pytest.raises(ValueError, match=r"no job changes it|workloads\.podTemplate names") as refused:
        _administrators(**attack.spec)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"securityContext": "x"},
        {"containers": [{"name": "worker", "securityContext": ["x"]}]},
        {"containers": [{"name": "worker", "env": [{"name": "A", "valueFrom": "x"}], "resources": {"claims": 5}}]},
        {"containers": [{"name": "worker", "envFrom": "x", "volumeMounts": [{"mountPath": 5}]}]},
        {"volumes": [{"name": "v", "projected": {"sources": [5, "x"]}}, {"name": "w", "secret": "x"}]},
        {"volumes": [{"name": "v", "projected": "x", "persistentVolumeClaim": ["x"]}]},
        {"initContainers": [{"name": "mine", "env": [{"name": "A", "valueFrom": {"fileKeyRef": 5}}]}]},
    ],
    ids=str,
)
def test_what_only_the_api_server_can_judge_is_left_to_it(fields: dict[str, Any]) -> None:
    """Nothing but a sentence comes of it."""
    job = changed(quickstart(), roles={"rollout": {"template": {"spec": fields}}})
    with suppress(ValueError):
        build(job, options=_OPTIONS)


def test_what_a_tenant_wants_beside_the_administrators_part_is_built() -> None:
    template = {
        "metadata": {"labels": {"mine": "a"}, "annotations": {"mine": "b"}},
        "spec": {
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "terminationGracePeriodSeconds": 90,
            "imagePullSecrets": [{"name": "mine"}],
            "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}],
            "initContainers": [{"name": "mine", "image": "i"}],
            "containers": [
                {
                    "name": "worker",
                    "image": "mine",
                    "env": [{"name": "LOG_LEVEL", "value": "debug"}],
                    "resources": {"limits": {"memory": "1Gi"}},
                    "volumeMounts": [{"name": "scratch", "mountPath": "/models-of-mine"}],
                },
                {"name": "mine", "image": "i", "volumeMounts": [{"name": "scratch", "mountPath": "/models"}]},
            ],
        },
    }
    assert _administrators(roles={"rollout": {"template": template}}) == _UNTOUCHED


def test_what_the_administrator_mounts_below_a_mount_of_the_operators_is_no_fault_of_the_job() -> None:
    mount = {"name": "node", "mountPath": "/tmp/node", "readOnly": True}
    brought = {
        "containers": [{"name": "worker", "volumeMounts": [mount]}],
        "volumes": [{"name": "node", "emptyDir": {}}],
    }
    build(quickstart(), options=OperatorOptions.model_validate({"workloads": {"podTemplate": {"spec": brought}}}))


def test_a_volume_of_the_operators_that_the_sidecar_shares_stays_what_it_is() -> None:
    sidecar = {"name": "mesh", "image": "mesh:1", "volumeMounts": [{"name": "tmp", "mountPath": "/shared"}]}
    options = OperatorOptions.model_validate({"workloads": {"podTemplate": {"spec": {"containers": [sidecar]}}}})
    mine = {"spec": {"volumes": [{"name": "tmp", "persistentVolumeClaim": {"claimName": "mine"}}]}}
    with pytest.raises(
        ValueError, match=r"roles\.rollout\.template\.spec\.volumes\[tmp\]: belongs to the administrator"
    ):
        build(changed(quickstart(), roles={"rollout": {"template": mine}}), options=options)


@pytest.mark.parametrize(
    ("mine", "field"),
    [
        ({"volumes": [{"name": "node", "hostPath": {"path": "/"}}]}, r"volumes\[node\]: belongs to the administrator"),
        ({"volumes": [{"name": "node", "hostPath": None, "emptyDir": {}}]}, r"volumes\[node\]: belongs to the"),
        ({"securityContext": {"runAsUser": 5000}}, "securityContext: decides what the administrator's volumes"),
    ],
    ids=["another path", "another kind", "another user, who may read other files"],
)
def test_a_volume_that_the_worker_alone_mounts_stays_what_it_is_and_for_whom_it_is(
    mine: dict[str, Any], field: str
) -> None:
    brought = {
        "containers": [{"name": "worker", "volumeMounts": [{"name": "node", "mountPath": "/node", "readOnly": True}]}],
        "volumes": [{"name": "node", "hostPath": {"path": "/srv/models"}}],
    }
    options = OperatorOptions.model_validate({"workloads": {"podTemplate": {"spec": brought}}})
    with pytest.raises(ValueError, match=rf"roles\.rollout\.template\.spec\.{field}"):
        build(changed(quickstart(), roles={"rollout": {"template": {"spec": mine}}}), options=options)


def test_the_token_of_the_administrators_service_account_is_given_to_no_job() -> None:
    options = OperatorOptions.model_validate({"workloads": {"podTemplate": {"spec": {"serviceAccountName": "mesh"}}}})
    mine = {"spec": {"automountServiceAccountToken": True}}
    with pytest.raises(ValueError, match="automountServiceAccountToken: would give out the token of the service"):
        build(changed(quickstart(), roles={"rollout": {"template": mine}}), options=options)


@pytest.mark.parametrize(
    ("given", "mine"), [("serviceAccount", "serviceAccountName"), ("serviceAccountName", "serviceAccount")]
)
def test_an_account_has_two_names_and_is_one(given: str, mine: str) -> None:
    """The API server takes serviceAccountName, and serviceAccount where that is not given."""
    options = OperatorOptions.model_validate({"workloads": {"podTemplate": {"spec": {given: "mesh"}}}})
    job = changed(quickstart(), roles={"rollout": {"template": {"spec": {mine: "admin"}}}})
    with pytest.raises(ValueError, match=rf"roles\.rollout\.template\.spec\.{mine}: belongs to the administrator"):
        build(job, options=options)
    build(changed(quickstart(), roles={"rollout": {"template": {"spec": {mine: None}}}}), options=options)


@pytest.mark.parametrize("driver", ["nfs.csi.k8s.io", "secrets-store.csi.k8s.io"])
def test_a_driver_that_the_administrator_does_not_use_is_the_jobs_where_no_account_is_brought(driver: str) -> None:
    share = {"name": "share", "csi": {"driver": "nfs.csi.k8s.io", "readOnly": True}}
    options = OperatorOptions.model_validate({"workloads": {"podTemplate": {"spec": {"volumes": [share]}}}})
    mine = {"spec": {"volumes": [{"name": "mine", "csi": {"driver": driver}}]}}
    job = changed(quickstart(), roles={"rollout": {"template": mine}})
    if driver == "nfs.csi.k8s.io":
        with pytest.raises(ValueError, match=r"volumes\[mine\]: the driver nfs\.csi\.k8s\.io"):
            build(job, options=options)
    else:
        build(job, options=options)


def test_a_job_takes_a_volume_of_the_operators_away_and_the_administrators_stay() -> None:
    brought = {"volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "all"}}]}
    mounts = [{"mountPath": "/dev/shm", "$patch": "delete"}]
    mine = {
        "volumes": [{"name": "shm", "$patch": "delete"}],
        "containers": [{"name": "worker", "volumeMounts": mounts}],
    }
    options = OperatorOptions.model_validate({"workloads": {"podTemplate": {"spec": brought}}})
    made = build(changed(quickstart(), roles={"rollout": {"template": {"spec": mine}}}), options=options)
    volumes = made["Deployment/quickstart-rollout"]["spec"]["template"]["spec"]["volumes"]
    assert brought["volumes"][0] in volumes
    assert "shm" not in [each["name"] for each in volumes]
