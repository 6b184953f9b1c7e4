from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.spec import RLJob
from tests.integration.dcs.world import World, job
from tests.integration.transfer_queue.servers import Servers, running_servers


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[Servers]:
    with running_servers() as servers:
        yield servers


@pytest.fixture
def world(shared_servers: Servers, tmp_path: Path) -> Iterator[World]:
    """A running coordinator over empty servers. Ranks beat often, so that what they say is soon seen."""
    yield from running(shared_servers, tmp_path, job(heartbeat_seconds=3))


@pytest.fixture
def critic_world(shared_servers: Servers, tmp_path: Path) -> Iterator[World]:
    """Of a job that trains two models: one rank of the actor, two of the critic."""
    yield from running(shared_servers, tmp_path, job(heartbeat_seconds=3, critic_replicas=2))


def running(servers: Servers, folder: Path, manifest: RLJob) -> Iterator[World]:
    servers.wipe()
    world = World(servers, folder, manifest)
    world.start()
    try:
        yield world
    finally:
        world.stop()
