"""An engine server for the tests of a module, and weights for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.engines.driven import DrivenEngine, torch_engine
from tests.integration.engines.engine_process import (
    engine_process,
    open_listener,
    talkative_model,
    url_of,
    write_weights,
)


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """A server of `talkative_model()`; tests share it and may find it with any weights, or none."""
    with open_listener() as listener, engine_process(listener, talkative_model(), halting=True):
        yield url_of(listener)


@pytest.fixture
def engine(server_url: str) -> Iterator[DrivenEngine]:
    """A client of its own for each test."""
    client = torch_engine(server_url)
    client.abort_all()
    yield client
    client.close()


@pytest.fixture(scope="module")
def first_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that fit."""
    return write_weights(tmp_path_factory.mktemp("weights"), talkative_model(seed=1), "first")


@pytest.fixture(scope="module")
def second_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights that fit."""
    return write_weights(tmp_path_factory.mktemp("weights"), talkative_model(seed=2), "second")
