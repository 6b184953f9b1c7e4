"""The registry: each backend under its kind, and the torch engine as one of them."""

from pathlib import Path

import pytest

from rljob_api.names import Role
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import Dtype
from rljob_workers.engines import BACKENDS, backend_of
from rljob_workers.engines.backend import EngineSettings, EngineSite, Fork, settings_of
from rljob_workers.engines.torch_engine.torch_client import TorchEngineClient
from tests.unit.api.manifests import changed

SITE = EngineSite(port=1, devices=(), folder=Path("engine"))
SPEC = RLJobSpec.model_validate(changed({"spec.roles.rollout": {"threads": 3}})["spec"])


def test_each_backend_is_found_by_its_kind() -> None:
    assert {kind: backend.kind for kind, backend in BACKENDS.items()} == {
        "Torch": "Torch",
        "SGLang": "SGLang",
        "Sim": "Sim",
    }


def test_an_engine_is_started_with_what_the_spec_states_of_its_role() -> None:
    assert settings_of(SPEC, Role.ROLLOUT) == EngineSettings(SPEC.model, Dtype.FLOAT32, threads=3)
    engine = {"kind": "SGLang", "args": ["--a"], "env": {"B": "c"}, "python": "/p", "tensorParallel": 2}
    spec = RLJobSpec.model_validate(changed({"spec.roles.rollout": {"gpus": 4, "engine": engine}})["spec"])
    wanted = EngineSettings(spec.model, Dtype.FLOAT32, 1, ("--a",), {"B": "c"}, "/p", 2)
    assert settings_of(spec, Role.ROLLOUT) == wanted


def test_the_torch_engine_is_forked_and_stays_whatever_it_answers() -> None:
    backend = backend_of(SPEC)
    assert isinstance(backend.command(settings_of(SPEC, Role.ROLLOUT), SITE), Fork)
    assert backend.ready.path == "/health"
    assert backend.ready.accepts(200)
    assert backend.ready.accepts(503)
    assert isinstance(backend.client("http://127.0.0.1:1", Path("engine-0.json"), SPEC), TorchEngineClient)


def test_a_client_needs_a_url() -> None:
    with pytest.raises(ValueError, match="is not of the form http://host:port"):
        backend_of(SPEC).client("127.0.0.1", Path("engine-0.json"), SPEC)
