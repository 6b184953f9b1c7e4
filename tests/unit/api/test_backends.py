"""What computes a job's model: what is imported before the forks, and in which type logits are."""

from typing import Any

import pytest

from rljob_api.names import EngineKind, Role
from rljob_api.spec import RLJobSpec
from rljob_api.spec.parallelism import ParallelismSpec
from rljob_api.spec.roles import TrainerBackend
from rljob_api.wire.processes import Preloads, preloads_of
from tests.unit.api.manifests import changed

SGLANG = {"kind": "SGLang"}


@pytest.mark.parametrize(
    ("rollout", "roles", "engine"),
    [
        pytest.param({}, list(Role), EngineKind.TORCH, id="a job of small engines"),
        pytest.param({"engine": SGLANG}, list(Role), EngineKind.SGLANG, id="all pods of one machine"),
        pytest.param({"engine": SGLANG}, [Role.ROLLOUT], EngineKind.SGLANG, id="a rollout's pod"),
        pytest.param({"engine": SGLANG}, [Role.ACTOR], None, id="a pod that has no engines"),
        pytest.param({"engine": SGLANG, "gpus": 1}, list(Role), None, id="programs of their own, on GPUs"),
    ],
)
def test_an_engine_is_imported_where_it_forks(
    rollout: dict[str, Any], roles: list[Role], engine: EngineKind | None
) -> None:
    spec = RLJobSpec.model_validate(changed({"spec.roles.rollout": rollout})["spec"])
    assert preloads_of(spec, roles).engine is engine


@pytest.mark.parametrize(
    ("roles", "trainers"),
    [
        pytest.param([Role.ACTOR], {"Megatron"}, id="the actor's own"),
        pytest.param([Role.ACTOR_FWD], {"Megatron"}, id="the actor's, of a role that gives none"),
        pytest.param([Role.REFERENCE], {"Fsdp"}, id="a reference's own"),
        pytest.param([Role.CRITIC], {"Flat"}, id="a critic's own"),
        pytest.param([Role.ROLLOUT, Role.ADVANTAGES], set(), id="of ranks that hold no model"),
        pytest.param(list(Role), {"Megatron", "Fsdp", "Flat"}, id="all of one machine"),
    ],
)
def test_a_backend_is_imported_where_a_rank_computes_with_it(roles: list[Role], trainers: set[str]) -> None:
    changes = {
        "spec.algorithm.advantage": "Gae",
        "spec.roles.actor": {"backend": "Megatron", "ranksPerPod": 4, "parallelism": {"tensor": 2}},
        "spec.roles.critic": {"backend": "Flat"},
        "spec.roles.reference": {"backend": "Fsdp"},
        "spec.roles.actorFwd": {},
    }
    spec = RLJobSpec.model_validate(changed(changes)["spec"])
    engine = EngineKind.TORCH if Role.ROLLOUT in roles else None
    assert preloads_of(spec, iter(roles)) == Preloads(frozenset(map(TrainerBackend, trainers)), engine)
    assert spec.parallelism_of(Role.ACTOR).tensor == 2
    assert spec.parallelism_of(Role.REFERENCE) == spec.parallelism_of(Role.ROLLOUT) == ParallelismSpec()


@pytest.mark.parametrize(
    ("model", "in_folder"),
    [
        pytest.param({}, False, id="made from the config"),
        pytest.param({"path": "/m", "config": None}, True, id="a folder's model"),
        pytest.param({"tokenizerPath": "/t"}, True, id="another folder's"),
    ],
)
def test_families_of_tokenizers_are_imported_where_one_lies_in_a_folder(model: dict[str, Any], in_folder: bool) -> None:
    changes = {f"spec.model.{name}": value for name, value in model.items()}
    spec = RLJobSpec.model_validate(changed(changes)["spec"])
    assert preloads_of(spec, list(Role)).tokenizer_in_folder is in_folder


@pytest.mark.parametrize(
    ("parallelism", "ranks", "multiple"),
    [
        pytest.param({}, 1, 1, id="a whole model"),
        pytest.param({"tensor": 4}, 4, 4, id="a cut sequence, as tensor has by default"),
        pytest.param({"tensor": 4, "sequence": False}, 4, 1, id="a sequence that is not cut"),
        pytest.param({"pipeline": 3, "virtualPipeline": 2}, 3, 1, id="stages"),
        pytest.param({"context": 3}, 3, 6, id="two pieces of a row for each context rank"),
        pytest.param({"tensor": 2, "context": 2, "pipeline": 2}, 8, 8, id="all of them"),
        pytest.param({"expert": 8, "expertTensor": 2}, 1, 1, id="experts, which add no ranks"),
    ],
)
def test_ranks_of_a_model_and_tokens_of_a_row(parallelism: dict[str, Any], ranks: int, multiple: int) -> None:
    spec = ParallelismSpec.model_validate(parallelism)
    assert (spec.ranks_per_model, spec.row_multiple) == (ranks, multiple)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"spec.model.dtype": "bfloat16"}, "bfloat16", id="the model's own"),
        pytest.param({}, "float32", id="a model in float32"),
        pytest.param(
            {"spec.model.dtype": "bfloat16", "spec.model.headDtype": "float32"}, "float32", id="as given on a CPU"
        ),
        pytest.param(
            {"spec.model.dtype": "bfloat16", "spec.model.headDtype": "bfloat16", "spec.roles.actor": {"gpus": 1}},
            "bfloat16",
            id="as given on GPUs",
        ),
    ],
)
def test_trainer_and_engine_make_logits_in_one_type(changes: dict[str, Any], expected: str) -> None:
    assert RLJobSpec.model_validate(changed(changes)["spec"]).head_dtype == expected
