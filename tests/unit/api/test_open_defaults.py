"""Defaults that depend on the rest of the job: what a new job gets, and that one that has begun keeps what it had."""

from pathlib import Path
from typing import Any

import pytest

from rljob_api.generate.crd import spec_schema
from rljob_api.manifest import parse_manifest
from rljob_api.names import EngineKind
from rljob_api.open_defaults import JobPlace, Resolution, RetainedDefaults, resolve
from rljob_api.revision import refused_changes, revision
from rljob_api.spec import RLJobSpec
from tests.unit.api.api_server import defaulted
from tests.unit.api.manifests import changed

SEVERAL_STEPS = {"spec.training.globalBatchSize": 256, "spec.training.microBatchSize": 256}

SMALL_PASSES = {"spec.training.microBatchSize": 1}
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
BYPASS = {"spec.algorithm.proximal": "Rollout", "spec.algorithm.correction": {"kind": "None"}}


def spec_of(changes: dict[str, Any]) -> RLJobSpec:
    return RLJobSpec.model_validate(changed(changes)["spec"])


def roles_of(resolution: Resolution) -> dict[str, Any]:
    """Role -> what it computes on; None for one that is not there."""
    roles = resolution.spec.roles
    devices = {role.value: (one.gpus, str(one.share_devices_with or "")) for role, one in roles.present().items()}
    return {"actor_fwd": None, "advantages": None, **devices, "engine": roles.rollout.engine.kind.value}


CPU = (0, "")
WHITENED = {"spec.algorithm.advantage": "ReinforcePlusPlus"}
VALUED = {"spec.algorithm.advantage": "Gae", "spec.roles.critic": {}}
SIMULATED = {"spec.roles.rollout": {"engine": {"kind": "Sim"}}}
PENALISED = {"spec.algorithm.kl.placement": "Reward"}
NO_ROLE: dict[str, Any] = {"spec.roles.advantages": None}
NEW = [
    pytest.param({}, {"actor_fwd": None, "reference": CPU, "engine": "Torch"}, id="no GPUs, one optimizer step"),
    pytest.param(SEVERAL_STEPS, {"actor_fwd": CPU, "engine": "Torch"}, id="several optimizer steps"),
    pytest.param({"spec.training.epochsPerRollout": 2}, {"actor_fwd": CPU}, id="several passes over a rollout"),
    pytest.param({"spec.roles.actorFwd": {}}, {"actor_fwd": CPU}, id="a role that is asked for"),
    pytest.param({**SEVERAL_STEPS, "spec.roles.actorFwd": None}, {"actor_fwd": None}, id="one that is not wanted"),
    pytest.param({"spec.algorithm.proximal": "Recompute"}, {"actor_fwd": CPU}, id="proximal Recompute, a role for it"),
    pytest.param({**SEVERAL_STEPS, "spec.algorithm.proximal": "Actor"}, {"actor_fwd": None}, id="Actor, none"),
    pytest.param({**SEVERAL_STEPS, **BYPASS}, {"actor_fwd": None}, id="Rollout, none"),
    pytest.param({}, {"advantages": None}, id="advantages of a group, made where it is put"),
    pytest.param({"spec.algorithm.advantage": "m:f"}, {"advantages": None}, id="so by a function of the user's"),
    pytest.param({"spec.algorithm.advantage": "ReMax"}, {"advantages": None}, id="and beside a greedy answer"),
    pytest.param({"spec.roles.advantages": {}}, {"advantages": CPU}, id="a role for them that is asked for"),
    pytest.param({"spec.roles.advantages": None}, {"advantages": None}, id="one that is not wanted, of a group"),
    pytest.param(WHITENED, {"advantages": CPU}, id="advantages over the rollout"),
    pytest.param(VALUED, {"advantages": CPU}, id="advantages of tokens"),
    pytest.param(PENALISED, {"advantages": CPU}, id="rewards that the reference lessens"),
    pytest.param(
        {"spec.algorithm.kl": {"coefficient": 0, "placement": "Reward"}}, {"advantages": None}, id="or does not"
    ),
    pytest.param(
        {"spec.roles.actor": {"gpus": 4}, "spec.roles.rollout": {"gpus": 4}},
        {"actor_fwd": None, "reference": (4, "actor"), "engine": "SGLang"},
        id="a reference shares all of the actor's devices",
    ),
    pytest.param(
        {**SEVERAL_STEPS, "spec.roles.actor": {"gpus": 2}, "spec.roles.rollout": {"gpus": 1}},
        {"actor_fwd": (2, "actor"), "reference": (2, "actor")},
        id="so does an actorFwd that nobody gave",
    ),
    pytest.param(
        {
            "spec.roles.actor": {"gpus": 4},
            "spec.roles.rollout": {"gpus": 1},
            "spec.roles.reference": {"replicas": 2},
        },
        {"reference": (2, "actor")},
        id="two pods have half of them each",
    ),
    pytest.param(
        {"spec.roles.actor": {"gpus": 1}, "spec.roles.rollout": {"gpus": 1}, "spec.roles.reference": {"gpus": 0}},
        {"reference": CPU},
        id="the CPU, where that is said",
    ),
    pytest.param(
        {"spec.roles.actor": {"gpus": 1}, "spec.roles.rollout": {"gpus": 1, "engine": {"kind": "Torch"}}},
        {"engine": "Torch"},
        id="an engine that is given",
    ),
]


@pytest.mark.parametrize(("changes", "expected"), NEW)
def test_a_new_job_gets(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    resolution = resolve(spec_of(changes), JobPlace.MACHINE)
    assert resolution.problems == ()
    assert {name: roles_of(resolution)[name] for name in expected} == expected


REFUSED = [
    pytest.param(
        {"spec.roles.actor": {"gpus": 1}},
        "spec.roles.rollout.gpus: is not given, but actor has gpus, and its model would be computed on the CPU. Give a"
        " number of GPUs (with shareDevicesWith: actor, to use the actor's), or 0 for the CPU.",
        id="rollouts on the CPU beside an actor on GPUs",
    ),
    pytest.param(
        {"spec.roles.rollout": {"gpus": 1}},
        "spec.roles.actor.gpus: is not given, but rollout has gpus, and its model would be computed on the CPU. Give a"
        " number of GPUs, or 0 for the CPU.",
        id="an actor on the CPU beside rollouts on GPUs",
    ),
    pytest.param(
        {"spec.roles.actor": {"gpus": 1}, "spec.roles.rollout": {"gpus": 1}, "spec.roles.reference": {"replicas": 2}},
        "spec.roles.reference.gpus: is not given, and 2 pods cannot share the actor's 1 devices. Give fewer, a number"
        " of GPUs of its own, or 0 for the CPU.",
        id="more pods than devices",
    ),
    pytest.param(
        {"spec.algorithm.proximal": "Recompute", "spec.roles.actorFwd": None},
        "spec.algorithm.proximal: Recompute needs the role actorFwd, which is null. Remove roles.actorFwd, give it as"
        " {}, or set proximal to Actor.",
        id="log-probs by a role that is taken away",
    ),
    pytest.param(
        {**NO_ROLE, **WHITENED},
        "spec.roles.advantages: null leaves advantages to the rollout, which has one group at a time, but"
        " ReinforcePlusPlus compares more, or tokens. Give the role as {}, or another advantage.",
        id="advantages over the rollout by a role that is taken away",
    ),
    pytest.param(
        {**NO_ROLE, **PENALISED},
        "spec.roles.advantages: null leaves advantages to the rollout, which does not have the reference's log-probs"
        " that algorithm.kl.placement Reward takes off rewards. Give the role as {}, or set placement to Loss.",
        id="lessened rewards by a role that is taken away",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED)
def test_what_would_be_wrong_either_way_has_to_be_stated(changes: dict[str, Any], sentence: str) -> None:
    assert resolve(spec_of(changes), JobPlace.MACHINE).problems == (sentence,)


@pytest.mark.parametrize("changes", [case.values[0] for case in NEW], ids=[str(case.id) for case in NEW])
def test_a_job_that_is_started_again_keeps_what_it_began_with(changes: dict[str, Any]) -> None:
    first = resolve(spec_of(changes), JobPlace.MACHINE).spec
    stored = RLJobSpec.model_validate_json(first.model_dump_json())
    edited = spec_of({**changes, "spec.training.globalBatchSize": 64, "spec.training.microBatchSize": 64})
    again = resolve(edited, JobPlace.MACHINE, RetainedDefaults.of(stored))
    assert again.problems == ()
    assert roles_of(again) == roles_of(Resolution(stored))


def test_a_job_that_began_changes_its_roles_with_the_policy_of_proximal_log_probs() -> None:
    stored = resolve(spec_of(SEVERAL_STEPS), JobPlace.CLUSTER).spec
    for place in JobPlace:
        again = resolve(spec_of({**SEVERAL_STEPS, **BYPASS}), place, RetainedDefaults.of(stored))
        assert roles_of(again)["actor_fwd"] is None
        assert roles_of(resolve(spec_of(SEVERAL_STEPS), place, RetainedDefaults.of(stored)))["actor_fwd"] == CPU


@pytest.mark.parametrize("place", JobPlace)
def test_a_job_that_began_has_a_role_for_advantages_as_it_had_and_where_it_is_needed_by_now(place: JobPlace) -> None:
    new = resolve(spec_of({}), place).spec
    old = spec_of({})  # as 0.2.0 stored it, which had the role always: without defaults, so without the field
    for stored, expected in ((new, None), (old, CPU)):
        text = stored.model_dump_json(exclude_defaults=True)
        retained = RetainedDefaults.of(RLJobSpec.model_validate_json(text))
        assert roles_of(resolve(spec_of({}), place, retained))["advantages"] == expected
        assert roles_of(resolve(spec_of(WHITENED), place, retained))["advantages"] == CPU
        assert roles_of(resolve(spec_of(NO_ROLE), place, retained))["advantages"] is None
        assert roles_of(resolve(spec_of({"spec.roles.advantages": {}}), place, retained))["advantages"] == CPU
        assert revision(resolve(spec_of({}), place, retained).spec) == revision(resolve(stored, place, retained).spec)


@pytest.mark.parametrize("changes", [WHITENED, PENALISED, VALUED])
def test_an_api_server_that_takes_null_for_nothing_gets_the_role_that_is_needed(changes: dict[str, Any]) -> None:
    found = resolve(spec_of({**NO_ROLE, **changes}), JobPlace.CLUSTER)
    assert roles_of(found)["advantages"] == CPU
    assert RLJobSpec.model_validate_json(found.spec.model_dump_json()) == found.spec, "all rules hold"


def test_a_stored_job_keeps_its_roles_its_engine_and_its_revision() -> None:
    """An actorFwd and every `gpus` are written in; the engine's kind and, by its default, advantages are not."""
    given = {"replicas": 1, "gpus": 0, "threads": 1}
    old = spec_of({"spec.roles": dict.fromkeys(("actor", "actorFwd", "reference"), given) | {"rollout": {"gpus": 1}}})
    retained = resolve(old, JobPlace.CLUSTER, RetainedDefaults.of(old))
    assert roles_of(retained) == {
        "actor": CPU,
        "actor_fwd": CPU,
        "reference": CPU,
        "rollout": (1, ""),
        "advantages": CPU,
        "engine": "Torch",
    }
    assert revision(retained.spec) == revision(old)


TRAINERS = {"spec.roles.actor": {"replicas": 4}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(SMALL_PASSES, 4, id="where it divides"),
        pytest.param({**SMALL_PASSES, "spec.training.globalBatchSize": 32}, 2, id="slices of whole groups"),
        pytest.param({**SMALL_PASSES, "spec.training.globalBatchSize": 16}, 1, id="no slices of half a group"),
        pytest.param({**SMALL_PASSES, **TRAINERS}, 4, id="each of four ranks has its share"),
        pytest.param({**SMALL_PASSES, "spec.roles.actor": {"replicas": 64}}, 4, id="of 64, too"),
        pytest.param({**SMALL_PASSES, "spec.roles.actor": {"replicas": 256}}, 2, id="of 256 with two"),
        pytest.param(
            {**SMALL_PASSES, **TRAINERS, "spec.training.globalBatchSize": 128, "spec.training.claimPolicy": "Group"},
            2,
            id="whole groups for each rank",
        ),
        pytest.param({"spec.training.microBatchSize": 256}, 2, id="no smaller than a micro-batch"),
        pytest.param({"spec.training.microBatchSize": 512}, 1, id="which may be all rows"),
        pytest.param({**SMALL_PASSES, "spec.training.epochsPerRollout": 2}, 4, id="actorFwd computes beforehand"),
        pytest.param(
            {**SMALL_PASSES, "spec.training.epochsPerRollout": 2, "spec.roles.actorFwd": None},
            1,
            id="the actor computes log-probs of all rows first",
        ),
        pytest.param(
            {**SMALL_PASSES, **BYPASS, "spec.training.epochsPerRollout": 2}, 4, id="the engine's are there already"
        ),
        pytest.param({**SMALL_PASSES, "spec.training.itersPerTrainUpdate": 1}, 1, id="as given"),
        pytest.param(
            {**SMALL_PASSES, "spec.algorithm.advantage": "ReinforcePlusPlus"}, 1, id="advantages over all rows"
        ),
    ],
)
def test_a_global_batch_of_a_new_job_has_so_many_slices(changes: dict[str, Any], expected: int) -> None:
    for place in JobPlace:
        resolution = resolve(spec_of(changes), place)
        assert resolution.spec.training.iters_per_train_update == expected
        shown = [choice.value for choice in resolution.choices if choice.field == "training.itersPerTrainUpdate"]
        assert shown == ([str(expected)] if expected > 1 else [])
        assert RLJobSpec.model_validate_json(resolution.spec.model_dump_json()) == resolution.spec, "all rules hold"


def test_a_job_that_began_keeps_its_number_of_slices_as_long_as_they_come_out_even() -> None:
    began = resolve(spec_of(SMALL_PASSES), JobPlace.MACHINE).spec
    before = spec_of(SMALL_PASSES)
    fewer = {"spec.training.globalBatchSize": 32, "spec.roles.actorFwd": {}}
    for stored, edit, expected in ((began, {}, 4), (before, {}, 1), (began, fewer, 2)):
        retained = RetainedDefaults.of(RLJobSpec.model_validate_json(stored.model_dump_json(exclude_defaults=True)))
        again = resolve(spec_of({**SMALL_PASSES, **edit}), JobPlace.MACHINE, retained)
        assert again.spec.training.iters_per_train_update == expected
    filled_in_by_the_release_before = spec_of({**SMALL_PASSES, "spec.training.itersPerTrainUpdate": 1})
    revisions = {
        revision(resolve(spec, JobPlace.CLUSTER, RetainedDefaults.of(before)).spec)
        for spec in (before, filled_in_by_the_release_before)
    }
    assert revisions == {revision(before)}, "an upgrade of the operator restarts no job"


@pytest.mark.parametrize("name", ["qwen3-4b-8xh100", "qwen3-4b-two-nodes", "qwen3-32b-two-nodes"])
def test_the_examples_of_real_models_stream(name: str) -> None:
    text = (EXAMPLES / f"{name}.yaml").read_text()
    assert resolve(parse_manifest(text, name).spec, JobPlace.CLUSTER).spec.training.iters_per_train_update == 4


BF16 = {"spec.model.dtype": "bfloat16"}
GPUS = {"spec.roles.actor": {"gpus": 1}, "spec.roles.rollout": {"gpus": 1}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({**BF16, **GPUS}, "float32", id="with GPUs"),
        pytest.param(
            {**BF16, "spec.roles.rollout": {"gpus": 1}, "spec.roles.actor": {"gpus": 0}}, "float32", id="or some"
        ),
        pytest.param(BF16, "bfloat16", id="on the CPU, as the model"),
        pytest.param({**BF16, **GPUS, "spec.model.headDtype": "bfloat16"}, "bfloat16", id="as given"),
        pytest.param(GPUS, "float32", id="of a model in float32"),
    ],
)
def test_logits_of_a_new_job_are_in(changes: dict[str, Any], expected: str) -> None:
    spec = spec_of(changes)
    assert (
        resolve(spec, JobPlace.MACHINE).spec.head_dtype == resolve(spec, JobPlace.CLUSTER).spec.head_dtype == expected
    )


STORED = [
    pytest.param(resolve(spec_of({**BF16, **GPUS}), JobPlace.MACHINE).spec, "float32", id="with GPUs"),
    pytest.param(resolve(spec_of(BF16), JobPlace.MACHINE).spec, "bfloat16", id="on the CPU"),
    pytest.param(spec_of({**BF16, **GPUS}), "bfloat16", id="in a version that knew no other type"),
]


@pytest.mark.parametrize(("stored", "expected"), STORED)
@pytest.mark.parametrize("edit", [{}, GPUS, {"spec.roles.actor": {"gpus": 0}, "spec.roles.rollout": {"gpus": 0}}])
def test_logits_of_a_job_that_began_stay_as_they_were(stored: RLJobSpec, expected: str, edit: dict[str, Any]) -> None:
    stored = RLJobSpec.model_validate_json(stored.model_dump_json())
    again = resolve(spec_of({**BF16, **edit}), JobPlace.MACHINE, RetainedDefaults.of(stored)).spec
    assert again.head_dtype == expected
    assert not [change for change in refused_changes(stored, again) if change.field.startswith("model")]


def test_a_share_that_the_actor_lacks_by_now_is_dealt_again() -> None:
    four = {"spec.roles.actor": {"gpus": 4}, "spec.roles.rollout": {"gpus": 1}}
    retained = RetainedDefaults.of(resolve(spec_of(four), JobPlace.MACHINE).spec)
    two = resolve(spec_of({**four, "spec.roles.actor": {"gpus": 2}}), JobPlace.MACHINE, retained)
    assert roles_of(two)["reference"] == (2, "actor")


def test_on_a_cluster_no_device_is_shared() -> None:
    gpus = {"spec.roles.actor": {"gpus": 2}, "spec.roles.rollout": {"gpus": 1}}
    resolution = resolve(spec_of({**gpus, **SEVERAL_STEPS, "spec.roles.reference": {"gpus": 1}}), JobPlace.CLUSTER)
    found = roles_of(resolution)
    assert (found["actor_fwd"], found["reference"], found["engine"]) == (None, (1, ""), "SGLang")


def test_what_was_resolved_before_wins_on_a_cluster_too() -> None:
    retained = RetainedDefaults(has_proximal_role=True, engine=EngineKind.TORCH)
    found = roles_of(
        resolve(
            spec_of({"spec.roles.rollout": {"gpus": 1}, "spec.roles.actor": {"gpus": 1}}), JobPlace.CLUSTER, retained
        )
    )
    assert (found["actor_fwd"], found["engine"]) == (CPU, "Torch")


def test_the_api_server_fills_in_nothing_that_is_resolved() -> None:
    """Else what was given could not be distinguished."""
    filled = defaulted(spec_schema(), changed({"spec.roles": {"actorFwd": {}, "advantages": {}}})["spec"])
    assert filled["roles"]["actorFwd"] == filled["roles"]["advantages"] == {}
    assert [name for name, role in filled["roles"].items() if "gpus" in role] == []
    without = changed({"spec.roles": {}})["spec"]
    assert not {"actorFwd", "advantages"} & set(defaulted(spec_schema(), without)["roles"])
    del without["roles"]
    assert not {"actorFwd", "advantages"} & set(defaulted(spec_schema(), without)["roles"])


GIVEN = [
    *(pytest.param(case.values[0], id=f"resolved: {case.id}") for case in NEW),
    pytest.param({"spec.roles.reference": {"parallelism": None, "replicas": 2}}, id="a role with a null"),
    pytest.param(
        {"spec.evaluation": {"everySteps": 5, "sets": [{"name": "a", "data": {"prompts": "a"}}]}}, id="a set of prompts"
    ),
    pytest.param(
        {"spec.rollout.reward": {"sum": [{"name": "a", "mathVerify": {}}], "shorter": {}}}, id="several rewards"
    ),
    pytest.param({"spec.model": {"config": {}}, "spec.simulation": {}, **SIMULATED}, id="objects with nothing in them"),
]


@pytest.mark.parametrize("changes", GIVEN)
@pytest.mark.parametrize("place", JobPlace, ids=lambda place: place.value)
def test_what_the_api_server_fills_in_is_never_what_the_rest_of_the_job_decides(
    changes: dict[str, Any], place: JobPlace
) -> None:
    """A stored job resolves to what its file does, for the same reasons, and means the same before that."""
    given = {path: value for path, value in changes.items() if value is not None}
    file = changed(given)["spec"]
    stored = defaulted(spec_schema(), file)
    assert RLJobSpec.model_validate(stored) == RLJobSpec.model_validate(file)
    assert resolve(RLJobSpec.model_validate(stored), place) == resolve(RLJobSpec.model_validate(file), place)
