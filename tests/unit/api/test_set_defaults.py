"""A set of an evaluation asks what training asks, but for what it says: at every door, stored or not."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.generate.crd import spec_schema
from rljob_api.manifest import admitted
from rljob_api.names import EngineKind
from rljob_api.open_defaults import JobPlace, RetainedDefaults, resolve
from rljob_api.revision import revision
from rljob_api.spec import RLJobSpec
from rljob_api.spec.data import ChatTemplateSpec, DataSpec
from rljob_api.spec.evaluation import (
    EvaluationChatTemplateSpec,
    EvaluationDataSpec,
    EvaluationSamplingSpec,
    EvaluationSetSpec,
)
from rljob_api.spec.rollout import SamplingSpec
from rljob_api.spec.set_defaults import are_filled, data_of, sampling_of, stated_data, stated_sampling
from tests.unit.api.api_server import defaulted
from tests.unit.api.manifests import changed

SCHEMA = spec_schema()
DATA = {
    "prompts": "train.jsonl",
    "promptKey": "question",
    "labelKey": "answer",
    "sourceKey": "topic",
    "applyChatTemplate": True,
    "systemPrompt": "Reason.",
    "chatTemplate": {"kwargs": {"thinking": False}, "tools": [{"name": "t"}], "file": "chat.jinja"},
}
SAMPLING = {"temperature": 0.7, "topP": 0.9, "topK": 5, "maxNewTokens": 9, "stopTokenIds": [10], "stop": ["."]}
SET = {"name": "a", "data": {"prompts": "a.jsonl"}}


def make_spec(*sets: dict[str, Any], data: dict[str, Any] = DATA) -> RLJobSpec:
    changes = {
        "spec.data": data,
        "spec.rollout.sampling": SAMPLING,
        "spec.rollout.reward": {"custom": {"function": "a:b"}},
        "spec.model": {"path": "m"},
        "spec.roles": {"actor": {}, "rollout": {"engine": {"kind": "SGLang"}}, "reference": {}},
        "spec.evaluation": {"sets": list(sets), "everySteps": 2},
    }
    return RLJobSpec.model_validate(admitted(changed(changes))["spec"])


def only(spec: RLJobSpec) -> EvaluationSetSpec:
    assert spec.evaluation is not None
    (each,) = spec.evaluation.sets
    return each


def answered(each: EvaluationSetSpec, spec: RLJobSpec) -> tuple[dict[str, Any], dict[str, Any]]:
    """Data and sampling by which a worker asks a set of a resolved job."""
    sampling = stated_sampling(each.sampling, spec.rollout.sampling)
    return stated_data(each.data).model_dump(mode="json"), sampling.model_dump(mode="json")


def test_a_set_may_state_all_that_training_states() -> None:
    for of_training, of_set in (
        (DataSpec, EvaluationDataSpec),
        (ChatTemplateSpec, EvaluationChatTemplateSpec),
        (SamplingSpec, EvaluationSamplingSpec),
    ):
        assert set(of_training.model_fields) == set(of_set.model_fields)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        pytest.param({}, {}, id="nothing said: as training"),
        pytest.param({"data": {"promptKey": "p", "labelKey": "l"}}, {"promptKey": "p", "labelKey": "l"}, id="keys"),
        pytest.param({"data": {"labelKey": ""}}, {"labelKey": None}, id="no label"),
        pytest.param({"data": {"sourceKey": ""}}, {"sourceKey": None}, id="no source"),
        pytest.param({"data": {"applyChatTemplate": False}}, {"applyChatTemplate": False}, id="texts as they are"),
        pytest.param({"data": {"systemPrompt": ""}}, {"systemPrompt": None}, id="no system"),
        pytest.param({"data": {"systemPrompt": "s"}}, {"systemPrompt": "s"}, id="another system"),
        pytest.param(
            {
                "data": dict.fromkeys(
                    ("promptKey", "labelKey", "sourceKey", "applyChatTemplate", "systemPrompt", "chatTemplate")
                ),
                "sampling": None,
            },
            {},
            id="nulls: as training",
        ),
        pytest.param(
            {
                "data": {"chatTemplate": dict.fromkeys(("kwargs", "tools", "file"))},
                "sampling": dict.fromkeys(("temperature", "topP", "topK", "minP", "maxNewTokens", "stop")),
            },
            {},
            id="nulls of template and sampling: as training",
        ),
        pytest.param({"data": {"chatTemplate": {}}}, {}, id="a template of which nothing is said: as training"),
        pytest.param(
            {"data": {"chatTemplate": {"kwargs": {}}}},
            {"chatTemplate": {**DATA["chatTemplate"], "kwargs": {}}},  # type: ignore[dict-item] # of many types
            id="no variables, and the same file and tools",
        ),
        pytest.param(
            {"data": {"chatTemplate": {"kwargs": {}, "tools": [], "file": ""}}},
            {"chatTemplate": None},
            id="the tokenizer's own template, with the messages alone",
        ),
        pytest.param({"sampling": {}}, {}, id="a sampling of which nothing is said: as training"),
        pytest.param({"sampling": {"temperature": 0}}, {"temperature": 0}, id="greedily, with training's limits"),
        pytest.param({"sampling": {"stop": [], "stopTokenIds": []}}, {"stop": [], "stopTokenIds": []}, id="no ends"),
        pytest.param(
            {"sampling": {"topP": 1, "topK": 0, "maxNewTokens": 3}},
            {"topP": 1, "topK": 0, "maxNewTokens": 3},
            id="own limits",
        ),
    ],
)
def test_a_set_is_answered_as_training_but_for_what_it_states(stated: dict[str, Any], expected: dict[str, Any]) -> None:
    written = {**SET, **stated, "data": {**SET["data"], **stated.get("data", {})}}  # type: ignore[dict-item] # likewise
    spec = make_spec(written)
    resolved = resolve(spec, JobPlace.CLUSTER).spec
    data, sampling = answered(only(resolved), resolved)
    own = {"prompts": "a.jsonl", "sources": None, "reasoningGym": None, "shuffleSeed": 0}
    asked = DATA | SAMPLING | own | expected
    assert {name: value for name, value in (data | sampling).items() if name in asked} == asked
    assert data_of(only(spec).data, spec.data).model_dump(mode="json") == data
    assert sampling_of(only(spec).sampling, spec.rollout.sampling).model_dump(mode="json") == sampling


def test_tasks_of_a_procedure_have_no_keys_and_the_template_of_training() -> None:
    resolved = resolve(make_spec({"name": "a", "data": {"reasoningGym": {"dataset": "d"}}}), JobPlace.MACHINE).spec
    data = stated_data(only(resolved).data)
    assert (data.source_key, data.system_prompt, data.apply_chat_template) == (None, "Reason.", True)


def test_an_api_server_stores_of_a_set_what_it_states() -> None:
    """So that kubectl shows unset fields as such, and readers see them as such."""
    data = {"prompts": "a.jsonl", "chatTemplate": {}}
    sets = [{"name": "a", "data": data, "sampling": {}}]
    stored = defaulted(SCHEMA, {"evaluation": {"sets": sets, "everySteps": 1}})["evaluation"]["sets"]
    assert stored == sets


STATED_TEMPLATE = st.fixed_dictionaries(
    {},
    optional={
        "kwargs": st.sampled_from([{}, {"k": 1}]),
        "tools": st.sampled_from([[], [{"name": "u"}]]),
        "file": st.sampled_from(["", "own.jinja"]),
    },
)
STATED_DATA = st.fixed_dictionaries(
    {"prompts": st.just("a.jsonl")},
    optional={
        "promptKey": st.sampled_from([None, "p"]),
        "labelKey": st.sampled_from([None, "", "l"]),
        "sourceKey": st.sampled_from([None, "", "s"]),
        "applyChatTemplate": st.none() | st.booleans(),
        "systemPrompt": st.sampled_from([None, "", "y"]),
        "chatTemplate": STATED_TEMPLATE,
    },
)
STATED_SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0, 1.0]),
        "topP": st.just(0.5),
        "topK": st.sampled_from([0, 2]),
        "minP": st.sampled_from([None, 0, 0.5]),
        "maxNewTokens": st.just(64),
        "stopTokenIds": st.sampled_from([[], [3]]),
        "stop": st.sampled_from([[], ["!"]]),
    },
)
STATED = st.fixed_dictionaries({"name": st.just("a"), "data": STATED_DATA}, optional={"sampling": STATED_SAMPLING})
OF_TRAINING = st.sampled_from(
    [DATA, {"prompts": "t.jsonl"}, {"prompts": "t.jsonl", "labelKey": None, "chatTemplate": {}}]
)


@settings(deadline=None)
@given(STATED, OF_TRAINING)
def test_a_resolved_set_states_all_however_it_is_stored(stated: dict[str, Any], data: dict[str, Any]) -> None:
    """In memory, in job.json, in a ConfigMap (without defaults), rendered and applied to an API server."""
    spec = make_spec(stated, data=data)
    resolved = resolve(spec, JobPlace.CLUSTER).spec
    expected = answered(only(resolved), resolved)
    assert expected[0] == data_of(only(spec).data, spec.data).model_dump(mode="json")
    stored = (
        resolved.model_dump_json(),
        resolved.model_dump_json(exclude_defaults=True),
        json.dumps(defaulted(SCHEMA, resolved.model_dump(mode="json"))),
    )
    for text in stored:
        read = RLJobSpec.model_validate_json(text)
        assert are_filled(read.evaluation)
        assert answered(only(read), read) == expected
        again = resolve(read, JobPlace.CLUSTER, RetainedDefaults.of(read)).spec
        assert again.evaluation is not None
        assert answered(only(again), again) == expected


OLD = {
    "sets": [
        {"name": "a", "data": {"prompts": "a.jsonl", "labelKey": "answer"}},
        {
            "name": "b",
            "data": {"prompts": "b.jsonl", "chatTemplate": {"kwargs": {"k": 1}}},
            "sampling": {"temperature": 0},
        },
    ],
    "everySteps": 2,
}
"""Sets of a job that began before sets took anything from training."""


def test_a_job_that_began_before_keeps_its_sets_and_its_revision() -> None:
    changes = {"spec.evaluation": OLD, "spec.data.systemPrompt": "s", "spec.data.promptKey": "q"}
    spec = RLJobSpec.model_validate(changed({**changes, "spec.rollout.sampling.maxNewTokens": 9})["spec"])
    began = RetainedDefaults(has_proximal_role=False, engine=spec.roles.rollout.engine.kind, has_advantages_role=False)
    resolution = resolve(spec, JobPlace.CLUSTER, began)
    assert revision(resolution.spec) == "ce4ae7779264", "running jobs restart when this changes: see `revision`"
    assert {choice.field: choice.value for choice in resolution.choices if "sets" in choice.field} == {
        "evaluation.sets[0].data.promptKey": '"prompt"',
        "evaluation.sets[0].data.systemPrompt": "null",
        "evaluation.sets[1].data.promptKey": '"prompt"',
        "evaluation.sets[1].data.systemPrompt": "null",
        "evaluation.sets[1].sampling.maxNewTokens": "64",
    }
    for text in (resolution.spec.model_dump_json(), resolution.spec.model_dump_json(exclude_defaults=True)):
        read = RLJobSpec.model_validate_json(text)
        assert not RetainedDefaults.of(read).sets_inherit
        assert read.evaluation is not None
        (first, drawn), (second, greedy) = (answered(each, read) for each in read.evaluation.sets)
        assert (first["promptKey"], first["labelKey"], first["systemPrompt"]) == ("prompt", "answer", None)
        assert second["chatTemplate"] == {"kwargs": {"k": 1}, "tools": [], "file": None}
        assert (drawn["maxNewTokens"], greedy["maxNewTokens"], greedy["temperature"]) == (9, 64, 0)


@pytest.mark.parametrize(
    ("stated", "earlier"),
    [
        pytest.param({"data": {"labelKey": None}}, "8f32ac686207", id="no label, which a null said"),
        pytest.param(
            {
                "data": {"labelKey": "k", "sourceKey": "s", "systemPrompt": "u", "chatTemplate": {"kwargs": {"b": 1}}},
                "sampling": {"temperature": 0},
            },
            "a4cf82d9fdff",
            id="all but the template's file",
        ),
        pytest.param(
            {
                "data": {"labelKey": "k", "sourceKey": "s", "systemPrompt": "u", "chatTemplate": {"file": "t"}},
                "sampling": {"temperature": 0, "topP": 0.9, "topK": 1, "maxNewTokens": 5},
            },
            "a2865ea375af",
            id="all that could be said",
        ),
    ],
)
def test_a_set_that_stated_much_before_takes_nothing_still(stated: dict[str, Any], earlier: str) -> None:
    written = {**SET, **stated, "data": {**SET["data"], **stated["data"]}}  # type: ignore[dict-item] # of many types
    spec = make_spec(written)
    began = RetainedDefaults(has_proximal_role=True, engine=EngineKind.SGLANG)
    resolved = resolve(spec, JobPlace.CLUSTER, began).spec
    assert revision(resolved) == earlier, "running jobs restart when this changes: see `revision`"
    expected = answered(only(resolved), resolved)
    assert expected[0]["labelKey"] == stated["data"]["labelKey"]
    assert (expected[0]["promptKey"], expected[0]["applyChatTemplate"]) == ("prompt", False)
    as_written = spec.model_dump_json(exclude_unset=True)
    for text in (as_written, resolved.model_dump_json(), resolved.model_dump_json(exclude_defaults=True)):
        read = RLJobSpec.model_validate_json(text)
        assert not RetainedDefaults.of(read).sets_inherit
        again = resolve(read, JobPlace.CLUSTER, RetainedDefaults.of(read)).spec
        assert answered(only(again), again) == expected


def test_a_job_without_sets_takes_from_training_once_it_has_some() -> None:
    began = RetainedDefaults.of(resolve(RLJobSpec.model_validate(changed({})["spec"]), JobPlace.CLUSTER).spec)
    assert began.sets_inherit
