"""A clone is a manifest that is accepted, goes on from the checkpoint, and says what it asks of its user."""

from typing import Any

import pytest
import yaml

from rljob_api.cluster import ANNOTATION_RECORDED, ANNOTATION_RUN, ANNOTATION_RUN_OF, ANNOTATION_SPEC
from rljob_api.generate.crd import spec_schema
from rljob_api.manifest import ManifestError, parse_manifest
from rljob_api.overrides import Override
from rljob_api.revision import retained_spec
from rljob_api.spec import RLJob, RLJobSpec
from rljob_cli.commands.clone import PARENT_DIR, Clone, CloneProblem, RetainedClaim, clone, read_claim, with_overrides
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
    assert job.spec.roles.advantages is not None
    assert job.spec.roles.advantages.template == {}
    assert any("demo-checkpoints, which goes with the RLJob demo" in note for note in made.notes)


WITH_CRITIC: dict[str, Any] = {"spec.algorithm": {"advantage": "Gae"}, "spec.roles": {"critic": {}}}


def test_a_critic_goes_on_from_its_part_of_the_checkpoint() -> None:
    made = clone(_resource(WITH_CRITIC), "next", from_checkpoint=True)
    critic = _read(made).spec.roles.critic
    assert critic is not None
    assert critic.model_path == f"{PARENT_DIR}/checkpoints/{FOLDER}/critic"
    assert _mounts(critic.template) == [{"name": "parent-checkpoints", "mountPath": PARENT_DIR, "readOnly": True}]
    assert any("The critic begins with the values of that checkpoint" in note for note in made.notes)


def test_rows_of_a_teacher_are_measured_against_it_still() -> None:
    changes = {
        "spec.algorithm": {"advantage": "Distillation"},
        "spec.roles.reference": {"modelPath": "/models/teacher"},
    }
    made = clone(_resource(changes), "next", from_checkpoint=True)
    reference = _read(made).spec.roles.reference
    assert reference is not None
    assert reference.model_path == "/models/teacher"
    assert not any("measured against" in note for note in made.notes)


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


def test_a_folder_outside_the_job_s_volume_is_named_and_mounted_by_no_one() -> None:
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
def test_what_cannot_be_cloned_is_reported(name: str, training: dict[str, Any] | None, sentence: str) -> None:
    with pytest.raises(CloneProblem) as refused:
        clone(_resource({}, training), name, from_checkpoint=True)
    assert str(refused.value).startswith(sentence)


def _claim(notes: dict[str, str] | None = None, **metadata: Any) -> RetainedClaim | None:
    """The claim of `demo`, as an earlier job has left it."""
    spec = retained_spec(RLJobSpec.model_validate(changed({"spec.seed": 3, "spec.checkpoint.path": "saved"})["spec"]))
    message = {ANNOTATION_RUN: "r", ANNOTATION_RUN_OF: "u0", ANNOTATION_SPEC: spec}
    annotations = {name: text for name, text in {**message, **(notes or {})}.items() if text}
    return read_claim("demo", {"metadata": {"namespace": "team", "annotations": annotations, **metadata}})


def test_a_job_that_is_gone_is_cloned_from_its_claim() -> None:
    made = clone(None, None, from_checkpoint=True, retained=_claim({ANNOTATION_RECORDED: "12 12-e3-0123456789ab"}))
    job = _read(made)
    assert (job.metadata.name, job.metadata.namespace, job.spec.seed) == ("demo-2", "team", 3)
    assert job.spec.model.path == f"{PARENT_DIR}/saved/{FOLDER}"
    (volume,) = job.spec.roles.actor.template["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == "demo-checkpoints"
    assert made.notes[:3] == (
        "A copy of the RLJob demo, which is gone.",
        "Version 0 (with a reference role: also what rows are measured against) is its checkpoint 12.",
        "It lies on the claim demo-checkpoints: keep that as long as this job runs.",
    )


def test_a_job_that_was_deleted_while_it_ran_is_cloned_from_what_it_recorded_last() -> None:
    made = clone(None, "next", from_checkpoint=True, retained=_claim())
    assert _read(made).spec.model.path == f"{PARENT_DIR}/saved/latest"
    assert "is its last checkpoint." in made.notes[1]


def test_a_job_whose_name_is_taken_by_another_run_is_cloned_with_the_weights_of_that() -> None:
    taken = _resource({"spec.seed": 7}, training={})
    job = _read(clone(taken, "next", from_checkpoint=True, retained=_claim()))
    assert job.spec.seed == 7
    assert job.spec.model.path == f"{PARENT_DIR}/saved/latest"
    assert job.spec.checkpoint.path is None


def test_the_spec_alone_is_cloned_from_a_claim_too() -> None:
    job = _read(clone(None, "next", from_checkpoint=False, retained=_claim()))
    assert (job.spec.seed, job.spec.model.path) == (3, None)


def test_a_claim_that_stays_asks_nothing_of_the_old_job() -> None:
    retained = _claim({ANNOTATION_RUN_OF: "u"})
    assert retained is not None
    assert any(
        note.startswith("It lies on the claim demo-checkpoints: keep that")
        for note in clone(_resource({}), "next", from_checkpoint=True, retained=retained).notes
    )
    goes = _claim({ANNOTATION_RUN_OF: "u"}, ownerReferences=[{"kind": "RLJob"}])
    assert any(
        "which goes with" in note for note in clone(_resource({}), None, from_checkpoint=True, retained=goes).notes
    )


@pytest.mark.parametrize(
    ("notes", "resource", "sentence"),
    [
        pytest.param({ANNOTATION_SPEC: "{"}, None, "The claim demo-checkpoints keeps no spec that", id="no spec"),
        pytest.param(
            {ANNOTATION_RUN_OF: "u"},
            _resource({}, training={}),
            "The RLJob demo has recorded no checkpoint yet.",
            id="its own claim, with nothing on it yet",
        ),
    ],
)
def test_a_claim_that_cannot_be_cloned_from_is_reported(
    notes: dict[str, str], resource: dict[str, Any] | None, sentence: str
) -> None:
    with pytest.raises(CloneProblem) as refused:
        clone(resource, None, from_checkpoint=True, retained=_claim(notes))
    assert str(refused.value).startswith(sentence)


def test_a_claim_of_somebody_else_keeps_nothing() -> None:
    assert _claim({ANNOTATION_RUN: ""}) is None
    assert read_claim("demo", {"metadata": {"namespace": "team"}}) is None


def test_fields_are_set_in_the_clone_and_checked() -> None:
    made = clone(_resource({}), None, from_checkpoint=True)
    given = ["algorithm.kl.coefficient=0.5", "metadata.name=stronger"]
    job = _read(with_overrides(made, [Override.parse(text) for text in given]))
    assert (job.spec.algorithm.kl.coefficient, job.metadata.name) == (0.5, "stronger")
    assert job.spec.model == made.job.spec.model
    with pytest.raises(ManifestError, match=r"spec.algorithm.kl.coefficient: -1 is below the minimum 0"):
        with_overrides(made, [Override.parse("algorithm.kl.coefficient=-1")])
