"""Storage units on real servers."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rljob_api.names import Epoch
from rljob_workers.transfer_queue.storage import StorageUnits
from tests.integration.data_plane.unit_server import UnitServer

INCARNATION = "0123456789ab"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a Unix socket's path has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="rljob-unit-") as path:
        yield Path(path)


@pytest.fixture
def servers(folder: Path) -> Iterator[list[UnitServer]]:
    """Two running units."""
    made = [UnitServer(folder, f"unit{index}") for index in range(2)]
    try:
        for server in made:
            server.start()
        yield made
    finally:
        for server in made:
            server.kill()


@pytest.fixture
def tcp_server(folder: Path) -> Iterator[UnitServer]:
    """A unit on a TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = UnitServer(folder, "tcp", port=port)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def connect() -> Iterator[Callable[..., StorageUnits]]:
    """Makes `StorageUnits` over servers and closes them."""
    made: list[StorageUnits] = []

    def connect_to(*servers: UnitServer, checksums: bool = False) -> StorageUnits:
        made.append(StorageUnits([server.url for server in servers], Epoch(3), INCARNATION, checksums=checksums))
        return made[-1]

    yield connect_to
    for units in made:
        units.close()


@pytest.fixture
def soon() -> Callable[..., float]:
    """A deadline so many seconds from now."""

    def after(seconds: float = 30.0) -> float:
        return time.monotonic() + seconds

    return after
