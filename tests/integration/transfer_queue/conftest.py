from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rljob_workers.transfer_queue.types import QueueShape, QueueTiming
from tests.integration.transfer_queue.job import PATIENT, Job
from tests.integration.transfer_queue.servers import Servers, running_servers
from tests.integration.transfer_queue.world import make_shape


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[Servers]:
    with running_servers() as servers:
        yield servers


@pytest.fixture
def servers(shared_servers: Servers) -> Servers:
    """Empty servers; what a test does to their processes it undoes by restarting them."""
    shared_servers.wipe()
    return shared_servers


@pytest.fixture
def make_job(servers: Servers) -> Iterator[Callable[..., Job]]:
    """Jobs whose invariants and bytes are proven when the test is over."""
    jobs: list[Job] = []

    def make(
        shape: QueueShape | None = None,
        *,
        timing: QueueTiming = PATIENT,
        checksums: bool = False,
        **options: Any,
    ) -> Job:
        jobs.append(Job(servers, shape or make_shape(**options), timing=timing, checksums=checksums))
        return jobs[-1]

    yield make
    for job in jobs:
        try:
            job.prove()
        finally:
            job.close()
