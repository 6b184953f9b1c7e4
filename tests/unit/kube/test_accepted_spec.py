"""A job as the operator goes by it: defaults that depend on the spec are those that the job began with."""

import asyncio
from typing import Any, cast

import pytest

from rljob_api.cluster import config_name
from rljob_api.spec import RLJob
from rljob_api.spec.set_defaults import stated_data
from rljob_api.status import AcceptedStatus, DefaultsStatus, RestartStatus, RLJobStatus
from rljob_operator.build import JOB_KEY, job_file
from rljob_operator.kube.accepted_spec import AcceptedSpec, InvalidManifest
from rljob_operator.kube.api import Api
from rljob_operator.kube.kinds import CONFIG_MAPS
from rljob_operator.kube.stored_spec import StoredSpec
from rljob_operator.kube.views import JobKey
from tests.unit.api.manifests import changed
from tests.unit.kube.fake_api import ApiOfAnswers

KEY = JobKey("ns", "job")
GPUS = {"actor": {"gpus": 2}, "rollout": {"gpus": 1}, "reference": {"gpus": 1}}
"""As the API server has it: no actorFwd, no advantages, no kind of engine."""
BEGUN = RestartStatus(epoch=3)


def accepted(status: RLJobStatus, roles: dict[str, Any] = GPUS, **changes: Any) -> RLJob:
    spec = changed({"spec.roles": roles, **changes})["spec"]
    raw = {
        "metadata": {"generation": 1, "resourceVersion": "1"},
        "spec": StoredSpec.of(spec),
        "status": status.model_dump(mode="json"),
    }
    job = AcceptedSpec(cast(Api, None), KEY).job(raw)
    assert isinstance(job, RLJob)
    return job


@pytest.mark.parametrize(
    ("status", "has_actor_fwd", "has_advantages", "engine"),
    [
        pytest.param(RLJobStatus(), False, False, "SGLang", id="a new job"),
        pytest.param(
            RLJobStatus(restart=BEGUN, accepted=AcceptedStatus(defaults=DefaultsStatus(engine="Another"))),
            True,
            True,
            "Torch",
            id="begun with an engine that only another version knows",
        ),
        pytest.param(
            RLJobStatus(
                restart=BEGUN, accepted=AcceptedStatus(defaults=DefaultsStatus(actor_fwd=False, engine="SGLang"))
            ),
            False,
            True,
            "SGLang",
            id="begun where every job had the role advantages",
        ),
        pytest.param(
            RLJobStatus(
                restart=BEGUN,
                accepted=AcceptedStatus(
                    defaults=DefaultsStatus(actor_fwd=False, advantages=False, engine="SGLang", sets_inherit=True)
                ),
            ),
            False,
            False,
            "SGLang",
            id="begun with the defaults of now",
        ),
        pytest.param(
            RLJobStatus(accepted=AcceptedStatus(defaults=DefaultsStatus(actor_fwd=True, engine="Torch"))),
            True,
            True,
            "Torch",
            id="accepted, and kept before its first epoch",
        ),
    ],
)
def test_what_is_not_given_means(status: RLJobStatus, has_actor_fwd: bool, has_advantages: bool, engine: str) -> None:
    roles = accepted(status).spec.roles
    assert (roles.actor_fwd is not None, roles.advantages is not None) == (has_actor_fwd, has_advantages)
    assert roles.rollout.engine.kind.value == engine


def test_an_estimator_that_needs_the_role_for_advantages_gets_it_whatever_the_job_began_with() -> None:
    """An edit on the cluster, where null cannot be distinguished from nothing."""
    begun = RLJobStatus(accepted=AcceptedStatus(defaults=DefaultsStatus(advantages=False, engine="Torch")))
    changes: dict[str, Any] = {"spec.algorithm.advantage": "ReinforcePlusPlus"}
    assert accepted(begun, **changes).spec.roles.advantages is not None
    assert accepted(begun, {**GPUS, "advantages": None}, **changes).spec.roles.advantages is not None


@pytest.mark.parametrize("levels", [220, 300])
def test_a_template_nested_too_deeply_is_refused_in_a_sentence(levels: int) -> None:
    nested: dict[str, Any] = {}
    for _ in range(levels):
        nested = {"a": nested}
    spec = changed({"spec.roles": {"rollout": {"template": {"spec": nested}}}})["spec"]
    raw = {"metadata": {"generation": 1, "resourceVersion": "1"}, "spec": StoredSpec.of(spec), "status": {}}
    job = AcceptedSpec(cast(Api, None), KEY).job(raw)
    assert isinstance(job, InvalidManifest)
    (sentence,) = job.problems
    assert sentence.startswith("spec: is nested too deeply")


def test_what_was_chosen_is_retained_over_an_edit_by_the_next_operator() -> None:
    """Several optimizer steps would be another default for a new job."""
    spec = AcceptedSpec(cast(Api, ApiOfAnswers({})), KEY)
    retained = spec.note(accepted(RLJobStatus()), 1)
    assert retained.defaults == DefaultsStatus(actor_fwd=False, advantages=False, engine="SGLang", sets_inherit=True)
    status = RLJobStatus.model_validate_json(
        RLJobStatus(restart=BEGUN, accepted=retained).model_dump_json(by_alias=True)
    )
    several: dict[str, Any] = {"spec.training.globalBatchSize": 256, "spec.training.microBatchSize": 8}
    job = accepted(status, **several)
    assert (job.spec.roles.actor_fwd, job.spec.roles.advantages) == (None, None)


@pytest.mark.parametrize(
    ("begun_by", "system_prompt"),
    [
        pytest.param(DefaultsStatus(engine="SGLang"), None, id="before sets took anything from training"),
        pytest.param(DefaultsStatus(engine="SGLang", sets_inherit=True), "s", id="since they take it"),
    ],
)
def test_sets_of_a_job_go_on_as_it_began(begun_by: DefaultsStatus, system_prompt: str | None) -> None:
    evaluation = {"sets": [{"name": "a", "data": {"prompts": "a.jsonl"}}], "everySteps": 2}
    changes: dict[str, Any] = {"spec.evaluation": evaluation, "spec.data.systemPrompt": "s"}
    status = RLJobStatus(restart=BEGUN, accepted=AcceptedStatus(defaults=begun_by))
    job = accepted(status, **changes)
    note = AcceptedSpec(cast(Api, ApiOfAnswers({})), KEY).note(job, 2)
    assert note.defaults is not None
    assert note.defaults.sets_inherit == begun_by.sets_inherit
    path = CONFIG_MAPS.path("ns", config_name("job"))
    api = ApiOfAnswers({path: {"data": {JOB_KEY: job_file(job, KEY.namespace)}}})
    found = asyncio.run(AcceptedSpec(cast(Api, api), KEY).last(RLJobStatus(accepted=note)))
    assert found is not None
    for each in (job, found[0]):
        assert each.spec.evaluation is not None
        assert stated_data(each.spec.evaluation.sets[0].data).system_prompt == system_prompt


def test_the_type_of_logits_is_retained_over_gpus_that_come_later() -> None:
    bf16 = {"spec.model.dtype": "bfloat16"}
    for roles, expected in ((GPUS, "float32"), ({"actor": {}, "rollout": {}, "reference": {}}, "")):
        retained = AcceptedSpec(cast(Api, ApiOfAnswers({})), KEY).note(accepted(RLJobStatus(), roles, **bf16), 1)
        assert retained.defaults is not None
        assert retained.defaults.head_dtype == expected
        job = accepted(RLJobStatus(restart=BEGUN, accepted=retained), {**GPUS, "reference": {"gpus": 0}}, **bf16)
        assert (job.spec.model.head_dtype or "") == expected


def test_the_spec_in_the_config_map_states_where_every_role_computes() -> None:
    """It is written without defaults, and is read as what it means, not as what a new job would get."""
    job = accepted(RLJobStatus(), {**GPUS, "reference": {"gpus": 0}})
    note = AcceptedSpec(cast(Api, ApiOfAnswers({})), KEY).note(job, 1)
    path = CONFIG_MAPS.path("ns", config_name("job"))
    api = ApiOfAnswers({path: {"data": {JOB_KEY: job_file(job, KEY.namespace)}}})
    found = asyncio.run(AcceptedSpec(cast(Api, api), KEY).last(RLJobStatus(accepted=note)))
    assert found is not None
    assert found[0].spec == job.spec
    reference = found[0].spec.roles.reference
    assert reference is not None
    assert "gpus" in reference.model_fields_set
