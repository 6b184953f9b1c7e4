"""The registry: each backend under its kind, and the torch engine as one of them."""

import pytest

from rljob_api.names import Role
from rljob_api.spec import RLJobSpec
from rljob_workers.engines.backend import EngineSettings, Fork, settings_of
from rljob_workers.engines.registry import BACKENDS, backend_of
from rljob_workers.engines.sglang_dialect.client import SglangDialectEngine
from tests.unit.api.manifests import changed

SPEC = RLJobSpec.model_validate(changed({"spec.roles.rollout": {"threads": 3}})["spec"])


def test_each_backend_is_found_by_its_kind() -> None:
    assert {kind: backend.kind for kind, backend in BACKENDS.items()} == {"Torch": "Torch"}


def test_an_engine_is_started_with_what_the_spec_says_of_its_role() -> None:
    assert settings_of(SPEC, Role.ROLLOUT) == EngineSettings(SPEC.model, threads=3)


def test_the_torch_engine_is_forked_and_lives_whatever_it_answers() -> None:
    backend = backend_of(SPEC)
    assert isinstance(backend.command(settings_of(SPEC, Role.ROLLOUT), 1), Fork)
    assert backend.ready.path == "/health"
    assert backend.ready.accepts(200)
    assert backend.ready.accepts(503)
    assert isinstance(backend.client("http://127.0.0.1:1"), SglangDialectEngine)


def test_a_client_needs_a_url() -> None:
    with pytest.raises(ValueError, match="is not of the form http://host:port"):
        backend_of(SPEC).client("127.0.0.1")
