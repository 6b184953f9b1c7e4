"""What rolls pods, and what does not: no epoch, no live value and nothing of training stands in a pod template."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import cluster
from rljob_api.names import Epoch
from rljob_api.status import ConditionType, RestartStatus, TrainingStatus
from rljob_operator.build import Manifest, digest, manifests
from rljob_operator.build.parts import Platform
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import OWNER, build, changed, make_status, pod_templates, quickstart, rich

_RICH = rich()
_TEMPLATES = pod_templates(build(_RICH))
_ROLES = ("actor", "actorFwd", "rollout", "reference", "advantages")


def _without_notes(objects: dict[str, Manifest]) -> dict[str, Manifest]:
    """Every object says which revision it was built for, and so differs; the rest is what counts."""
    for found in objects.values():
        del found["metadata"]["annotations"]
    return objects


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"training": {"optimizer": {"learningRate": 1.0e-4}}}, id="learning rate"),
        pytest.param({"rollout": {"numRollouts": 7, "maxStaleness": 0}}, id="rollouts"),
        pytest.param({"restartPolicy": {"threshold": 9}}, id="restart policy"),
        pytest.param({"weightSync": {"timeoutSeconds": 9}}, id="weight sync"),
        pytest.param({"checkpoint": {"everySteps": 3}}, id="checkpoints"),
        pytest.param({"telemetry": {"sampleLog": True}}, id="telemetry"),
        pytest.param({"roles": {"rollout": {"threads": 2}}}, id="threads"),
        pytest.param({"ttlSecondsAfterFinished": 3, "activeDeadlineSeconds": 5}, id="limits of time"),
        pytest.param({"restartRequest": {"id": "again"}}, id="a restart that is asked for"),
    ],
)
def test_only_the_config_map_holds(fields: dict[str, Any]) -> None:
    before, after = _without_notes(build(quickstart())), _without_notes(build(changed(quickstart(), **fields)))
    assert {name for name in before if before[name] != after[name]} == {"ConfigMap/quickstart-job"}


@pytest.mark.parametrize(
    ("fields", "rolled"),
    [
        pytest.param(
            {"image": "other"},
            {"coordinator", "actor", "actor-fwd", "rollout", "reference", "advantages"},
            id="image",
        ),
        pytest.param({"roles": {"actorFwd": {"gpus": 1}}}, {"actor-fwd"}, id="GPUs"),
        pytest.param({"roles": {"rollout": {"resources": {"limits": {"memory": "1Gi"}}}}}, {"rollout"}, id="memory"),
        pytest.param({"roles": {"reference": {"template": {"spec": {"nodeName": "x"}}}}}, {"reference"}, id="template"),
        pytest.param({"transferQueue": {"storageBytes": 1 << 28}}, {"storage"}, id="a unit's memory"),
        pytest.param({"transferQueue": {"redis": {"image": "other"}}}, {"control", "storage"}, id="image of Redis"),
        pytest.param({"transferQueue": {"storageUnits": 5}}, set(), id="more units"),
        pytest.param({"roles": {"rollout": {"replicas": 5}}}, set(), id="more rollouts"),
    ],
)
def test_pods_are_replaced_by_what_concerns_them(fields: dict[str, Any], rolled: set[str]) -> None:
    before, after = pod_templates(build(quickstart())), pod_templates(build(changed(quickstart(), **fields)))
    assert {name.partition("/quickstart-")[2] for name in before if before[name] != after[name]} == rolled


@given(
    epoch=st.integers(0, 1 << 31),
    step=st.integers(0, 1 << 31),
    replicas=st.integers(0, 64),
    condition=st.sampled_from(ConditionType),
)
def test_nothing_of_the_status_is_in_a_pod_template(
    epoch: int, step: int, replicas: int, condition: ConditionType
) -> None:
    status = make_status(condition, rollout=replicas).model_copy(
        update={
            "restart": RestartStatus(epoch=Epoch(epoch), reason="why", decision_id="d", revision="r"),
            "training": TrainingStatus(step=step, weight_version=step),
        }
    )
    assert pod_templates(build(_RICH, status)) == _TEMPLATES


def test_a_template_carries_the_digest_of_the_rest() -> None:
    for name, template in pod_templates(build(rich())).items():
        annotations = template["metadata"]["annotations"]
        given = annotations.pop(cluster.ANNOTATION_TEMPLATE)
        if not annotations:
            del template["metadata"]["annotations"]
        assert given == digest(template), name


def test_an_object_carries_the_digest_of_what_is_applied() -> None:
    before, after = build(quickstart()), build(quickstart(), make_status(rollout=3))
    applied = cluster.ANNOTATION_APPLIED
    changed = {name for name in before if _note(before[name], applied) != _note(after[name], applied)}
    assert changed == {"Deployment/quickstart-rollout"}


def test_an_object_states_what_it_was_built_for() -> None:
    built_for = cluster.ANNOTATION_BUILT_FOR
    objects, faster = build(quickstart()), build(changed(quickstart(), training={"optimizer": {"learningRate": 0.5}}))
    assert len({_note(found, built_for) for found in objects.values()}) == 1
    for note in (built_for, cluster.ANNOTATION_APPLIED):
        same = [name for name in objects if _note(objects[name], note) == _note(faster[name], note)]
        assert same == [], f"{note} does not tell that they are of another revision"


@pytest.mark.parametrize("role", _ROLES)
def test_a_template_of_a_role_changes_no_other_object(role: str) -> None:
    patch = {"spec": {"priorityClassName": "high"}}
    before, after = build(quickstart()), build(changed(quickstart(), roles={role: {"template": patch}}))
    differ = {name for name in before if name in pod_templates(before) and _spec(before[name]) != _spec(after[name])}
    assert len(differ) == 1


def test_the_same_input_gives_the_same_manifests_in_the_same_order() -> None:
    made = [manifests(rich(), OWNER, make_status(), OperatorOptions(), Platform()) for _ in range(2)]
    assert repr(made[0]) == repr(made[1])


def _note(manifest: Manifest, name: str) -> str:
    return str(manifest["metadata"]["annotations"][name])


def _spec(manifest: Manifest) -> Any:
    return manifest["spec"]
