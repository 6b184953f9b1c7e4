from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.world import make_shape


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


@pytest.fixture
def make_job(servers: Servers) -> Iterator[Callable[..., Job]]:
    """Jobs whose invariants and bytes are proven when the test is over."""
    jobs: list[Job] = []

    def make(**options: Any) -> Job:
        jobs.append(Job(servers, make_shape(**options)))
        return jobs[-1]

    yield make
    for job in jobs:
        try:
            job.prove()
        finally:
            job.close()
