"""What is imported before the forks of a job: SGLang only where its servers are forks, and only for their pods."""

from typing import Any

import pytest

from rljob_api.backends import Preloads, TrainerBackend, preloads_of
from rljob_api.engine_spec import EngineKind
from rljob_api.names import Role
from rljob_api.spec import RLJobSpec
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
