"""A clone is a manifest that is accepted, goes on from the checkpoint, and says what it asks of its user."""

from typing import Any

import pytest
import yaml

from rljob_api.crd import spec_schema
from rljob_api.manifest import parse_manifest
from rljob_api.spec import RLJob
from rljob_cli.cloning import PARENT_DIR, Clone, CloneProblem, clone
from tests.unit.api.api_server import defaulted
from tests.unit.api.manifests import changed

FOLDER = "12-e3-0123456789ab"


def _resource(changes: dict[str, Any], training: dict[str, Any] | None = None) -> dict[str, Any]:
    """The job as the API server has it."""
    resource = changed(changes)
    metadata = {"namespace": "team", "uid": "u", "resourceVersion": "7", "generation": 3, "managedFields": []}
    resource["metadata"] |= metadata
    resource["spec"] = defaulted(spec_schema(), resource["spec"])
    resource["status"] = {"training": {"checkpoint": 12, "checkpointFolder": FOLDER} if training is None else training}
    return resource


def _read(made: Clone) -> RLJob:
    job = parse_manifest(made.text(), "clone")
    assert job == made.job
    return job


def _mounts(template: dict[str, Any]) -> list[dict[str, Any]]:
    (worker,) = (container for container in template["spec"]["containers"] if container["name"] == "worker")
    return list(worker["volumeMounts"])


def test_a_clone_goes_on_from_the_last_checkpoint() -> None:
    made = clone(_resource({"spec.suspend": True, "spec.restartRequest": {"id": "a"}}), "next", from_checkpoint=True)
    job = _read(made)
    assert (job.metadata.name, job.metadata.namespace) == ("next", "team")
    assert job.spec.model.path == f"{PARENT_DIR}/checkpoints/{FOLDER}"
    assert job.spec.model.config is None
    assert not job.spec.suspend
    assert job.spec.restart_request is None
    volume = {
        "name": "parent-checkpoints",
        "persistentVolumeClaim": {"claimName": "demo-checkpoints", "readOnly": True},
    }
    for role in (job.spec.roles.actor, job.spec.roles.rollout, job.spec.roles.actor_fwd, job.spec.roles.reference):
        assert role is not None
        assert role.template["spec"]["volumes"] == [volume]
        assert _mounts(role.template) == [
            {"name": "parent-checkpoints", "mountPath": PARENT_DIR, "readOnly": True},
        ]
    assert job.spec.roles.advantages.template == {}
    assert any("demo-checkpoints, which goes with the RLJob demo" in note for note in made.notes)


def test_only_what_was_given_is_written() -> None:
    text = clone(_resource({}), None, from_checkpoint=False).text()
    written = yaml.safe_load(text)
    assert written["metadata"] == {"name": "demo-2", "namespace": "team"}
    assert written["spec"].keys() == {"model", "data", "algorithm", "rollout", "training", "roles"}
    assert written["spec"]["roles"] == {"reference": {}}


def test_a_claim_of_the_user_is_mounted_and_not_shared() -> None:
    changes = {"spec.checkpoint": {"path": "saved", "volume": {"claimName": "mine", "accessMode": "ReadWriteMany"}}}
    made = clone(_resource(changes), "next", from_checkpoint=True)
    job = _read(made)
    assert job.spec.model.path == f"{PARENT_DIR}/saved/{FOLDER}"
    assert job.spec.checkpoint.volume.claim_name is None
    assert job.spec.roles.actor.template["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "mine"
    assert any("claim of its own instead of mine" in note for note in made.notes)
    assert not any("ReadWriteOnce" in note for note in made.notes)


def test_a_template_keeps_what_it_had_and_a_clone_of_a_clone_mounts_once() -> None:
    template = {
        "spec": {
            "nodeSelector": {"zone": "a"},
            "volumes": [{"name": "data"}, {"name": "parent-checkpoints", "emptyDir": {}}],
            "containers": [{"name": "worker", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
        }
    }
    made = _read(clone(_resource({"spec.roles.actor": {"template": template}}), "next", from_checkpoint=True))
    patched = made.spec.roles.actor.template
    assert patched["spec"]["nodeSelector"] == {"zone": "a"}
    assert [volume["name"] for volume in patched["spec"]["volumes"]] == ["data", "parent-checkpoints"]
    assert [mount["name"] for mount in _mounts(patched)] == ["data", "parent-checkpoints"]


def test_a_folder_outside_the_job_s_volume_is_named_and_mounted_by_nobody() -> None:
    made = clone(_resource({"spec.checkpoint": {"path": "/shared/saved"}}), "next", from_checkpoint=True)
    job = _read(made)
    assert job.spec.model.path == f"/shared/saved/{FOLDER}"
    assert job.spec.roles.actor.template == {}
    assert any(note.startswith(f"/shared/saved/{FOLDER} is on no volume of the job") for note in made.notes)


def test_labels_and_annotations_of_the_user_go_along_and_those_of_tools_do_not() -> None:
    resource = _resource({})
    resource["metadata"]["labels"] = {"team": "a", "app.kubernetes.io/managed-by": "Helm"}
    resource["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "b"}
    metadata = clone(resource, "next", from_checkpoint=False).job.metadata
    assert (metadata.labels, metadata.annotations) == ({"team": "a"}, {"note": "b"})


def test_a_long_name_stays_within_its_limit() -> None:
    resource = _resource({"metadata.name": "a" * 37 + "-bc"})
    assert clone(resource, None, from_checkpoint=False).job.metadata.name == "a" * 37 + "-2"


@pytest.mark.parametrize(
    ("name", "training", "sentence"),
    [
        pytest.param("next", {}, "The RLJob demo has recorded no checkpoint yet. Wait", id="no checkpoint yet"),
        pytest.param("demo", None, "--name: demo is the job itself. Give another name.", id="its own name"),
        pytest.param("Next", None, 'metadata.name: "Next" is not of the right form.', id="a name that is none"),
    ],
)
def test_what_cannot_be_cloned_is_told(name: str, training: dict[str, Any] | None, sentence: str) -> None:
    with pytest.raises(CloneProblem) as refused:
        clone(_resource({}, training), name, from_checkpoint=True)
    assert str(refused.value).startswith(sentence)
