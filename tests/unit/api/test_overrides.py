"""`--set`: what is set is read by the field's type, and is then as if it stood in the manifest."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.manifest import ManifestError, document_of, job_of, parsed
from rljob_api.overrides import _METADATA, Override, known_paths, overridden
from rljob_api.spec import Metadata
from tests.unit.api.manifests import GOOD, changed


def after(*given: str, document: dict[str, Any] = GOOD) -> dict[str, Any]:
    return overridden(document, [Override.parse(text) for text in given])


def at(document: Any, *place: str | int) -> Any:
    for step in place:
        document = document[step]
    return document


@pytest.mark.parametrize(
    ("given", "place", "value"),
    [
        ("training.optimizer.learningRate=1e-6", ("spec", "training", "optimizer", "learningRate"), 1e-6),
        ("spec.rollout.maxStaleness=3", ("spec", "rollout", "maxStaleness"), 3),
        ("suspend=true", ("spec", "suspend"), True),
        ("model.path=1e-6", ("spec", "model", "path"), "1e-6"),
        ("model.path=a=b", ("spec", "model", "path"), "a=b"),
        ("model.path=null", ("spec", "model", "path"), None),
        ('model.path="null"', ("spec", "model", "path"), "null"),
        ('model.path="half', ("spec", "model", "path"), '"half'),
        ("model.path=", ("spec", "model", "path"), ""),
        ("rollout.sampling.stopTokenIds=[1, 2]", ("spec", "rollout", "sampling", "stopTokenIds"), [1, 2]),
        ("rollout.reward.sum[0].weight=2", ("spec", "rollout", "reward", "sum", 0, "weight"), 2),
        ("roles.critic={}", ("spec", "roles", "critic"), {}),
        ("roles.rollout.resources.limits.cpu=500m", ("spec", "roles", "rollout", "resources", "limits", "cpu"), "500m"),
        (
            "roles.rollout.template.spec.nodeSelector.zone=eu",
            ("spec", "roles", "rollout", "template", "spec", "nodeSelector", "zone"),
            "eu",
        ),
        ('metadata.labels["a.b/c=d"]=2', ("metadata", "labels", "a.b/c=d"), "2"),
        ("metadata.name=other", ("metadata", "name"), "other"),
    ],
)
def test_a_value_is_read_as_its_field_wants_it(given: str, place: tuple[str | int, ...], value: object) -> None:
    found = at(after(given), *place)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            "seed",
            '--set: "seed" is not FIELD=VALUE. Give a field and its value, such as'
            " training.optimizer.learningRate=1e-6.",
        ),
        (
            "training.optimizer.learningRat=1",
            "--set: spec.training.optimizer.learningRat: there is no such field. Did you mean"
            " training.optimizer.learningRate?",
        ),
        (
            "learning_rate=1",
            "--set: spec.learning_rate: there is no such field. Did you mean training.optimizer.learningRate?",
        ),
        (
            "model.config.tokenizer.frob=1",
            "--set: spec.model.config.tokenizer.frob: there is no such field. Known here: kind, alphabet.",
        ),
        ("seed.x=1", "--set: spec.seed.x: there is no such field. seed has none in it: it is a value."),
        ("rollout[1]=1", "--set: spec.rollout: is no list, so that it has no item 1. Leave [1] out."),
        (
            "rollout.reward.sum.weight=1",
            "--set: spec.rollout.reward.sum: is a list. Name an item by its index, as in rollout.reward.sum[0].weight.",
        ),
        (
            "rollout.reward.sum[1].weight=1",
            "--set: spec.rollout.reward.sum[1]: the list has 0 items, and 1 is beyond the next. Give an index of at"
            " most 0, which adds one.",
        ),
        (
            "rollout.maxStaleness=[1",
            "--set: spec.rollout.maxStaleness: \"[1\" is no value in YAML: expected ',' or ']', but got"
            " '<stream end>'.",
        ),
    ],
)
def test_what_names_no_field_is_refused_with_the_nearest_names(given: str, sentence: str) -> None:
    with pytest.raises(ManifestError) as refused:
        after(given)
    assert refused.value.problems == (sentence,)


WITH_SETS = changed({"spec.evaluation": {"sets": [{"data": {"prompts": "p.jsonl"}}]}})
WITH_CRITIC = changed({"spec.roles": {"critic": {}}})


@pytest.mark.parametrize(
    ("given", "document", "expected"),
    [
        pytest.param("rollout.temperature", GOOD, ["rollout.sampling.temperature"], id="no evaluation"),
        pytest.param(
            "rollout.temperature",
            WITH_SETS,
            ["rollout.sampling.temperature", "evaluation.sets[0].sampling.temperature"],
            id="an evaluation",
        ),
        pytest.param(
            "learning_rate",
            WITH_CRITIC,
            ["training.optimizer.learningRate", "roles.critic.optimizer.learningRate"],
            id="a critic",
        ),
        pytest.param("rollout.prompts", GOOD, ["data.prompts"], id="no sources and no sets"),
        pytest.param("rollout.path", GOOD, ["model.path", "algorithm.path", "checkpoint.path"], id="no functions"),
        pytest.param("at_start", GOOD, ["evaluation.atStart"], id="all are offered where none has a place"),
        pytest.param("temperature", {"spec": 5}, ["rollout.sampling.temperature"], id="no manifest at all"),
    ],
)
def test_of_fields_elsewhere_those_are_offered_that_have_a_place(
    given: str, document: dict[str, Any], expected: list[str]
) -> None:
    with pytest.raises(ManifestError) as refused:
        after(f"{given}=1", document=document)
    (sentence,) = refused.value.problems
    assert sentence.partition("Did you mean ")[2].partition("?")[0].split(" or ") == expected


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("training.optimizer.learningRate=fast", '"fast" is not a number. Give a number.'),
        ("rollout.batchSize=", '"" is not an integer. Give an integer.'),
        ("rollout.batchSize=1.5", "1.5 is not an integer. Give an integer."),
        ("rollout.batchSize=null", "null is not an integer. Give an integer."),
        ("cleanPodPolicy=Al", '"Al" is not a known value. Did you mean All?'),
    ],
)
def test_a_wrong_value_has_the_sentence_of_a_manifest(given: str, sentence: str) -> None:
    path = given.partition("=")[0]
    with pytest.raises(ManifestError) as refused:
        parsed(after(given))
    assert refused.value.problems == (f"spec.{path}: {sentence}",)


def test_all_that_name_no_field_are_reported_at_once() -> None:
    with pytest.raises(ManifestError) as refused:
        after("a=1", "seed=2", "b=3")
    assert [text.split(": ")[1] for text in refused.value.problems] == ["spec.a", "spec.b"]


def test_the_later_one_holds_and_the_document_stays_as_it_was() -> None:
    before = copy.deepcopy(GOOD)
    assert after("seed=1", "seed=2")["spec"]["seed"] == 2
    assert before == GOOD


def test_an_anchor_that_two_fields_share_is_set_in_one_of_them() -> None:
    text = "spec:\n  roles:\n    actor: &same\n      threads: 1\n    rollout: *same\n"
    roles = after("roles.actor.threads=4", document=document_of(text, "job.yaml"))["spec"]["roles"]
    assert roles == {"actor": {"threads": 4}, "rollout": {"threads": 1}}


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for name, inner in node.items():
            yield from leaves(inner, f"{path}.{name}" if path else name)
    else:
        yield path, node


RENDERED = parsed(GOOD).model_dump(mode="json")


def test_every_field_set_to_what_it_is_leaves_the_manifest_as_it_is() -> None:
    found = dict(leaves(RENDERED["spec"]))
    assert len(found) > 100
    for path, value in found.items():
        text = value if isinstance(value, str) and value != "null" else json.dumps(value)
        assert after(f"{path}={text}", document=RENDERED) == RENDERED, path


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_text_can_be_set(text: str) -> None:
    document = after(f"data.prompts={json.dumps(text, ensure_ascii=False)}")
    assert document["spec"]["data"]["prompts"] == text


@given(st.text(max_size=20))
def test_nothing_that_is_given_raises_anything_else(text: str) -> None:
    problems: tuple[str, ...] = ()
    try:
        after(text)
    except ManifestError as refused:
        problems = refused.problems
    assert all(sentence.startswith("--set: ") for sentence in problems)


def test_known_paths_are_those_that_can_be_set() -> None:
    paths = known_paths()
    assert {"training.optimizer.learningRate", "rollout.reward.sum[0].weight", "roles.critic.optimizer.beta1"} <= set(
        paths
    )
    for path in paths:
        after(f"{path}=null")


def test_metadata_has_the_fields_of_its_model() -> None:
    assert set(_METADATA["properties"]) == set(Metadata.model_fields)
    assert job_of(after("metadata.namespace=there")).metadata.namespace == "there"
