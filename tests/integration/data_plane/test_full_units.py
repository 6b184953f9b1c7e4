"""Storage units without room for even a small put: how often they are asked meanwhile."""

from __future__ import annotations

import re
import time

import pytest
import torch

from rljob_api.names import Epoch
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.errors import StorageFull
from rljob_workers.transfer_queue.resp import RespConnection, ServerAddress
from rljob_workers.transfer_queue.storage import FULL_RETRY_SECONDS, StorageUnits
from tests.integration.data_plane.conftest import INCARNATION
from tests.integration.data_plane.unit_server import UnitServer

PATIENCE_SECONDS = 2.0
_SETS = re.compile(rb"cmdstat_set:calls=(\d+),.*rejected_calls=(\d+)")


class Clock:
    """Goes on with every sleep, and hardly with a look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-4
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def ask(server: UnitServer, *text: bytes) -> bytes:
    until = time.monotonic() + 120
    connection = RespConnection(ServerAddress.parse(server.url), deadline=until, silence_seconds=120)
    try:
        reply = connection.call(*text, deadline=until)
        assert isinstance(reply, bytes)
        return reply
    finally:
        connection.close()


def num_puts(server: UnitServer) -> int:
    found = _SETS.search(ask(server, b"INFO", b"commandstats"))
    return sum(map(int, found.groups())) if found else 0


@pytest.mark.parametrize("num_full", [1, 2])
def test_a_small_put_is_tried_at_intervals_where_no_unit_has_room(servers: list[UnitServer], num_full: int) -> None:
    full = servers[:num_full]
    for server in full:
        ask(server, b"CONFIG", b"SET", b"maxmemory", b"1")
        ask(server, b"CONFIG", b"RESETSTAT")
    clock = Clock()
    units = StorageUnits([server.url for server in full], Epoch(3), INCARNATION, clock=clock, sleep=clock.sleep)
    columns = {"tokens": Jagged.scalars(torch.zeros(256))}
    try:
        with pytest.raises(StorageFull, match="Given up after"):
            units.store(columns, deadline=clock.now + PATIENCE_SECONDS)
    finally:
        units.close()
    attempts = sum(map(num_puts, full))
    assert num_full < attempts <= PATIENCE_SECONDS / FULL_RETRY_SECONDS + num_full
