"""What a change of each field means: every field is in the table once, and CEL and Python refuse the same changes."""

import copy
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from rljob_api.base import ApiModel
from rljob_api.change import LIVE, Change, fixed
from rljob_api.generate.crd import Defaults, Schema, spec_schema
from rljob_api.names import Role
from rljob_api.revision import GROWING, REFUSED, TABLE, WAY_OUT, refused_changes, revision, row_of, rows_of
from rljob_api.roles import SCALED_ROLE, field_name
from rljob_api.spec import RLJobSpec
from tests.unit.api.api_server import defaulted, refused_by_cel
from tests.unit.api.manifests import changed

SCHEMA = spec_schema()


def _leaves(schema: Schema, path: str = "") -> Iterator[str]:
    for name, part in schema["properties"].items():
        if part.get("properties"):
            yield from _leaves(part, f"{path}{name}.")
        else:
            yield f"{path}{name}"


LEAVES = sorted(_leaves(SCHEMA))


def _spec(changes: dict[str, Any]) -> dict[str, Any]:
    return dict(changed({f"spec.{field}": value for field, value in changes.items()})["spec"])


def _revision(changes: dict[str, Any]) -> str:
    return revision(RLJobSpec.model_validate(_spec(changes)))


@pytest.mark.parametrize("field", LEAVES)
def test_every_field_is_in_exactly_one_row(field: str) -> None:
    over = [row.field for row in TABLE if field == row.field or field.startswith(f"{row.field}.")]
    assert len(over) == 1, f"spec.{field} is in the rows {over}: decide what a change of it means"
    assert row_of(field).field == over[0]


def test_every_row_is_a_field() -> None:
    for row in TABLE:
        node = SCHEMA
        for name in row.field.split("."):
            node = node["properties"][name]


def test_a_field_without_a_row_has_no_meaning() -> None:
    with pytest.raises(KeyError, match=r"spec\.critic is in no row of the table of changes"):
        row_of("critic")


def test_a_field_without_a_mark_is_an_error() -> None:
    class Spec(ApiModel):
        marked: Annotated[int, LIVE] = 0
        seed: Annotated[int, fixed("samples depend on it.")] = 0
        steps: int | None = None

    with pytest.raises(TypeError, match=r"^spec\.steps does not say what a change of it means\."):
        list(rows_of(Spec))


def test_the_replicas_of_a_scalable_role_alone_are_live() -> None:
    changes = {role: row_of(f"roles.{field_name(role)}.replicas").change for role in Role}
    assert {role for role, change in changes.items() if change is Change.LIVE} == {SCALED_ROLE}


def test_every_refusal_has_its_reason_and_nothing_else_has() -> None:
    for row in TABLE:
        assert bool(row.reason) == (row.change in (Change.REFUSED, Change.GROWS)), row
        assert not row.reason or row.reason.endswith("."), row


SAME = [
    pytest.param({"roles.rollout": {"replicas": 3}}, id="rollouts are scaled"),
    pytest.param(
        {"roles.rollout": {"autoscaling": {"minReplicas": 2, "maxReplicas": 3}}}, id="rollouts scale themselves"
    ),
    pytest.param({"restartPolicy": {"threshold": 5, "failureRules": []}}, id="another restart policy"),
    pytest.param({"suspend": True}, id="suspended"),
    pytest.param({"restartRequest": {"id": "a"}}, id="a restart is asked for"),
    pytest.param({"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 5, "cleanPodPolicy": "None"}, id="its end"),
    pytest.param({"training.optimizer": {"learningRate": 1e-6}}, id="a default that is written out"),
    pytest.param({"roles": {"reference": {"replicas": 1}, "actor": {"resources": {}}}}, id="defaults of a role"),
    pytest.param({"roles.rollout": {"engine": {"kind": "Torch", "args": []}}}, id="defaults of an engine"),
    pytest.param({"checkpoint.volume": {"size": "20Gi", "onDelete": "Delete"}}, id="a larger volume that goes, too"),
]
OTHER = [
    pytest.param({"image": "registry/worker:2"}, id="an image"),
    pytest.param({"training.optimizer": {"learningRate": 1e-5}}, id="a learning rate"),
    pytest.param({"training.optimizer": {"schedule": "Cosine"}}, id="a schedule"),
    pytest.param({"training.maxTokensPerMicroBatch": 4096}, id="a budget of tokens"),
    pytest.param({"training.maxSkippedSteps": 0}, id="no step left out"),
    pytest.param({"training.packing": False, "roles.actor": {"backend": "Fsdp"}}, id="rows padded"),
    pytest.param({"training.activationCheckpointing": False}, id="activations kept"),
    pytest.param({"roles.actor": {"backend": "Fsdp"}}, id="another backend"),
    pytest.param({"rollout.maxStaleness": 2}, id="staleness"),
    pytest.param({"rollout.numRollouts": 20}, id="more rollouts"),
    pytest.param({"rollout.sampling.stopTokenIds": [1]}, id="a list"),
    pytest.param({"roles.actor": {"resources": {"limits": {"cpu": "2"}}}}, id="resources"),
    pytest.param({"roles.rollout": {"template": {"spec": {"priorityClassName": "high"}}}}, id="a patch"),
    pytest.param({"roles.reference": {"replicas": 2}}, id="more references"),
    pytest.param({"roles.reference": {"modelPath": "/models/teacher"}}, id="a teacher"),
    pytest.param({"roles.actorFwd": None}, id="no actor_fwd"),
    pytest.param({"roles.rollout": {"ranksPerPod": 2}}, id="more engines in a pod"),
    pytest.param({"roles.rollout": {"engine": {"kind": "SGLang"}}}, id="another kind of engine"),
    pytest.param({"roles.rollout": {"engine": {"env": {"A": "1"}}}}, id="another environment of engines"),
    pytest.param({"checkpoint.everySteps": 1}, id="a checkpoint at every step, where the model's size decided"),
    pytest.param({"checkpoint.everySteps": 7}, id="rarer checkpoints"),
    pytest.param({"checkpoint.keepEvery": 100}, id="milestones"),
    pytest.param({"roles.reference": None}, id="no reference"),
    pytest.param({"telemetry": {"sampleLog": True}}, id="the audit"),
]


@pytest.mark.parametrize("changes", SAME)
def test_what_is_live_or_a_default_needs_no_epoch(changes: dict[str, Any]) -> None:
    assert _revision(changes) == _revision({})


@pytest.mark.parametrize("changes", OTHER)
def test_what_an_epoch_runs_with_makes_another_revision(changes: dict[str, Any]) -> None:
    no_kl = {"algorithm.kl.coefficient": 0}  # so that a job may do without its reference
    assert _revision(no_kl | changes) != _revision(no_kl)


def test_the_revision_is_one_of_the_content_alone() -> None:
    spec = _spec({"image": "a", "telemetry": {"sampleLog": True}})
    turned = dict(reversed(spec.items()))
    assert revision(RLJobSpec.model_validate(spec)) == revision(RLJobSpec.model_validate(turned))
    from_api_server = RLJobSpec.model_validate(defaulted(SCHEMA, spec))
    assert revision(from_api_server) == revision(RLJobSpec.model_validate(spec))
    written_by_0_1_0 = _revision({"checkpoint.everySteps": 1})
    assert written_by_0_1_0 == "fafedbea4401", "running jobs restart when this changes: see `revision`"


CHANGES: dict[str, Any] = {
    "mode": None,
    "seed": 7,
    "model": {"path": "m"},
    "data": {"prompts": "others.jsonl"},
    "rollout.batchSize": 64,
    "rollout.samplesPerPrompt": 32,
    "training.refUpdateInterval": 4,
    "transferQueue.redis.persistence": {"kind": "EmptyDir"},
    "checkpoint.path": "elsewhere",
    "checkpoint.volume.claimName": "mine",
    "checkpoint.volume.storageClassName": "fast",
    "checkpoint.volume.accessMode": "ReadWriteMany",
    "managedBy": "example.com/other",
}
"""A change of each refused field; None where there is only one value."""


def test_there_is_a_change_of_each_refused_field() -> None:
    assert list(CHANGES) == [row.field for row in REFUSED]


@pytest.mark.parametrize("field", [field for field, value in CHANGES.items() if value is not None])
@pytest.mark.parametrize("direction", ["set", "taken back"])
def test_a_refused_change_is_refused_by_cel_and_python_alike(field: str, direction: str) -> None:
    old, new = _spec({}), _spec({field: CHANGES[field]})
    if direction == "taken back":
        old, new = new, old
    (found,) = refused_changes(RLJobSpec.model_validate(old), RLJobSpec.model_validate(new))
    assert found.row.field == field
    (broken,) = refused_by_cel(SCHEMA, defaulted(SCHEMA, old), defaulted(SCHEMA, new), "spec")
    assert broken.field == f"spec.{field}"
    assert broken.sentence == f"{found.row.refusal()} {WAY_OUT}."


@pytest.mark.parametrize("changes", [*SAME, *OTHER[:-2]])
def test_other_changes_are_let_through(changes: dict[str, Any]) -> None:
    old, new = _spec({}), _spec(changes)
    assert not refused_changes(RLJobSpec.model_validate(old), RLJobSpec.model_validate(new))
    assert not list(refused_by_cel(SCHEMA, defaulted(SCHEMA, old), defaulted(SCHEMA, new), "spec"))


@pytest.mark.parametrize(
    ("old", "new", "is_refused"),
    [
        pytest.param(None, "", False, id="null becomes empty"),
        pytest.param("", None, False, id="empty becomes null"),
        pytest.param(None, None, False, id="null stays"),
        pytest.param("answer", "", True, id="a key becomes empty"),
        pytest.param(None, "answer", True, id="null becomes a key"),
        pytest.param("", "answer", True, id="empty becomes a key"),
    ],
)
def test_an_empty_label_key_is_the_same_as_a_null_to_cel_and_python(
    old: str | None, new: str | None, is_refused: bool
) -> None:
    reward = {"rollout.reward": {"custom": {"function": "a:b"}}}
    before, after = (_spec({**reward, "data.labelKey": key}) for key in (old, new))
    by_python = refused_changes(RLJobSpec.model_validate(before), RLJobSpec.model_validate(after))
    by_cel = list(refused_by_cel(SCHEMA, defaulted(SCHEMA, before), defaulted(SCHEMA, after), "spec"))
    assert (bool(by_python), bool(by_cel)) == (is_refused, is_refused)


SOURCES = [{"prompts": "a"}, {"prompts": "b", "weight": 2}]
FIXED_PARTS = [
    pytest.param({"model": {"config": {}}}, {"model.config": {"numLayers": 3}}, id="a model's size"),
    pytest.param({"model": {"config": {}}}, {"model.config.tokenizer": {"kind": "Byte"}}, id="its tokenizer"),
    pytest.param({"model": {"path": "m"}}, {"model.tokenizerPath": "t"}, id="another folder's tokenizer"),
    pytest.param({}, {"data.labelKey": "answer"}, id="a key"),
    pytest.param({}, {"data.shuffleSeed": None}, id="no order"),
    pytest.param({"data": {"sources": SOURCES}}, {"data.sources": SOURCES[:1]}, id="fewer sources"),
    pytest.param({"data": {"sources": SOURCES}}, {"data.sources": SOURCES[::-1]}, id="sources in another order"),
    pytest.param({"data": {"sources": SOURCES}}, {"data.sources": [*SOURCES[:1], {"prompts": "b"}]}, id="a weight"),
    pytest.param({}, {"data.chatTemplate": {"tools": [{"name": "f"}]}}, id="a tool"),
    pytest.param(
        {"data": {"reasoningGym": {"dataset": "d"}}},
        {"data.reasoningGym.parameters": {"n": 1}},
        id="what tasks are made of",
    ),
]


@pytest.mark.parametrize(("begun", "change"), FIXED_PARTS)
def test_a_part_of_what_is_fixed_cannot_change_and_is_the_same_however_it_was_stored(
    begun: dict[str, Any], change: dict[str, Any]
) -> None:
    """An API server has stored all defaults of a job that an earlier definition let in, and may have stored nulls."""
    old, new = _spec(begun), _spec(copy.deepcopy(begun) | change)
    with_all = defaulted(spec_schema(Defaults.ALL), old)
    assert with_all != defaulted(SCHEMA, old)
    section = next(iter(change)).partition(".")[0]
    for before in (defaulted(SCHEMA, old), with_all):
        assert not list(refused_by_cel(SCHEMA, before, defaulted(SCHEMA, old), "spec"))
        assert not list(refused_by_cel(SCHEMA, defaulted(SCHEMA, old), before, "spec"))
        (broken,) = refused_by_cel(SCHEMA, before, defaulted(SCHEMA, new), "spec")
        assert broken.field == f"spec.{section}"


@pytest.mark.parametrize(
    ("old", "new", "is_refused"),
    [
        pytest.param("10Gi", "20Gi", False, id="larger"),
        pytest.param("1Gi", "1024Mi", False, id="the same in other words"),
        pytest.param("1Gi", "1G", True, id="smaller, though it reads alike"),
        pytest.param("10Gi", "9.5Gi", True, id="a little smaller"),
    ],
)
def test_what_may_grow_may_not_become_less(old: str, new: str, is_refused: bool) -> None:
    (row,) = GROWING
    before, after = (defaulted(SCHEMA, _spec({row.field: size})) for size in (old, new))
    broken = list(refused_by_cel(SCHEMA, before, after, "spec"))
    assert [each.sentence for each in broken] == (
        [f"{row.refusal()} Set it back, or give a larger one."] if is_refused else []
    )
    assert refused_changes(RLJobSpec.model_validate(before), RLJobSpec.model_validate(after)) == []
