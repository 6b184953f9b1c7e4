"""What computes a job's model: what is imported before the forks, and in which type logits are."""

from typing import Any

import pytest

from rljob_api.names import EngineKind, Role
from rljob_api.spec import RLJobSpec
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
        pytest.param({"engine": SGLANG}, [Role.ACTOR], EngineKind.TORCH, id="a pod that has no engines"),
        pytest.param({"engine": SGLANG, "gpus": 1}, list(Role), EngineKind.TORCH, id="programs of their own, on GPUs"),
    ],
)
def test_sglang_is_imported_where_it_is_forked(rollout: dict[str, Any], roles: list[Role], engine: EngineKind) -> None:
    spec = RLJobSpec.model_validate(changed({"spec.roles.rollout": rollout})["spec"])
    assert preloads_of(spec, roles) == Preloads(TrainerBackend.FLAT, engine)


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
