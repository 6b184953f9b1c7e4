from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.dcs.world import World, job
from tests.integration.transfer_queue.servers import Servers


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[Servers]:
    # Not tmp_path: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="rlj-dcs-") as folder:
        servers = Servers(Path(folder))
        servers.start()
        try:
            yield servers
        finally:
            servers.stop()


@pytest.fixture
def world(shared_servers: Servers, tmp_path: Path) -> Iterator[World]:
    """A running coordinator over empty servers."""
    shared_servers.wipe()
    world = World(shared_servers, tmp_path, job())
    world.start()
    try:
        yield world
    finally:
        world.stop()
