"""One server of each kind for a process of pytest, and versions of the weights that it serves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from rljob_workers.engines.base import Engine
from tests.integration.engines.contract.contenders import Contender, LiveContender, SimContender, kinds, make
from tests.integration.engines.contract.reference import Weights, vary_checkpoint, write_simulated, write_versions

VERSIONS = 3


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asynchronous tests run in asyncio."""
    return "asyncio"


@pytest.fixture(scope="session", params=kinds())
def shared_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contender]:
    """Tests take `server`, which lives."""
    contender = make(request.param, tmp_path_factory.mktemp("engine"))
    yield contender
    contender.close()


@pytest.fixture
def server(shared_server: Contender) -> Contender:
    """The server of this test's kind; it may hold any weights, or none."""
    shared_server.ensure()
    return shared_server


@pytest.fixture(scope="session")
def versions(shared_server: Contender, tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    """Weights that the server takes; the index is the number of the version."""
    folder = tmp_path_factory.mktemp("versions")
    if isinstance(shared_server, LiveContender):
        info = httpx.get(f"{shared_server.url}/server_info", timeout=60).json()
        return vary_checkpoint(Path(info["model_path"]), folder, VERSIONS)
    if isinstance(shared_server, SimContender):
        return write_simulated(folder, VERSIONS)
    return write_versions(folder, VERSIONS)


@pytest.fixture
async def engine(server: Contender) -> AsyncIterator[Engine]:
    """A client of its own for each test; whatever another one has left at the server is gone."""
    client = server.client()
    await client.abort_all()
    yield client
    await client.close()
