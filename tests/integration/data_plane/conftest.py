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
from rljob_workers.transfer_queue.types import QueueTiming
from tests.integration.data_plane.unit_server import UnitServer

INCARNATION = "0123456789ab"
PATIENT = QueueTiming(unit_silence_seconds=30.0)
"""A unit that answers is waited for, however busy the machine; a put still leaves one that hangs after a moment."""


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
    with socket.socket() as held:
        # It never listens: no one else is given the port, and the server, which sets the same option, may listen there.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        server = UnitServer(folder, "tcp", port=held.getsockname()[1])
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
        urls = [server.url for server in servers]
        made.append(StorageUnits(urls, Epoch(3), INCARNATION, checksums=checksums, timing=PATIENT))
        return made[-1]

    yield connect_to
    for units in made:
        units.close()


@pytest.fixture
def soon() -> Callable[..., float]:
    """A deadline so many seconds from now."""

    def after(seconds: float = 120.0) -> float:
        return time.monotonic() + seconds

    return after
