from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.transfer_queue.servers import Servers


def _serve() -> Iterator[Servers]:
    # Not tmp_path: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="rlj-") as folder:
        servers = Servers(Path(folder))
        servers.start()
        try:
            yield servers
        finally:
            servers.stop()


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[Servers]:
    yield from _serve()


@pytest.fixture
def servers(shared_servers: Servers) -> Servers:
    """Empty servers; what a test does to their processes it undoes by restarting them."""
    shared_servers.wipe()
    return shared_servers
