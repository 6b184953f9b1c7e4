"""What the coordinator does with a storage unit: marks, sweeps, memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.resp import ServerAddress
from rljob_workers.transfer_queue.storage import StorageUnits
from rljob_workers.transfer_queue.units import StorageUnit
from tests.integration.data_plane.unit_server import UnitServer

Soon = Callable[..., float]


def test_a_mark_stays_until_the_server_is_gone(servers: list[UnitServer], soon: Soon) -> None:
    unit = StorageUnit(0, servers[0].url)
    assert unit.generation(deadline=soon()) == 1
    assert unit.mark(5, deadline=soon()) == 1
    servers[0].kill()
    servers[0].start(generation=None)
    assert unit.generation(deadline=soon()) is None
    assert unit.mark(5, deadline=soon()) == 5
    assert unit.generation(deadline=soon()) == 5
    unit.close()


def test_a_mark_is_raised_and_never_lowered(servers: list[UnitServer], soon: Soon) -> None:
    unit = StorageUnit(0, servers[0].url)
    assert unit.raise_mark(10, deadline=soon()) == 10
    assert unit.raise_mark(9, deadline=soon()) == 10
    assert unit.generation(deadline=soon()) == 10
    servers[0].kill()
    servers[0].start(generation=None)
    assert unit.raise_mark(3, deadline=soon()) == 3
    assert unit.generation(deadline=soon()) == 3
    unit.close()


def test_a_sweep_sees_every_chunk_and_never_the_mark(
    servers: list[UnitServer], connect: Callable[..., StorageUnits], soon: Soon
) -> None:
    units = connect(servers[0])
    stored = [units.store({"a": Jagged.scalars(torch.zeros(1))}, deadline=soon()) for _ in range(700)]
    keys = {placement.chunks[0].key for put in stored for placement in put.values()}
    unit = StorageUnit(0, servers[0].url)
    assert {key for page in unit.scan(deadline=soon) for key in page} == keys
    assert unit.delete(sorted(keys), deadline=soon()) == 700
    assert unit.delete(sorted(keys), deadline=soon()) == 0
    assert unit.generation(deadline=soon()) == 1
    unit.close()


def test_memory_and_traffic_are_reported_in_bytes(
    servers: list[UnitServer], connect: Callable[..., StorageUnits], soon: Soon
) -> None:
    unit = StorageUnit(0, servers[0].url)
    before = unit.figures(deadline=soon())
    connect(servers[0]).store({"a": Jagged.scalars(torch.zeros(2_000_000))}, deadline=soon())
    after = unit.figures(deadline=soon())
    assert before.limit_bytes == after.limit_bytes == 1 << 28
    assert after.used_bytes - before.used_bytes >= 8_000_000
    assert after.received_bytes - before.received_bytes >= 8_000_000
    assert after.sent_bytes > before.sent_bytes
    assert after.keys > before.keys
    unit.close()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        pytest.param("unix://:pw@/run/u 0.sock", "/run/u 0.sock", id="Unix socket"),
        pytest.param("unix:///run/u.sock", "/run/u.sock", id="without a password"),
        pytest.param("redis://:pw@10.0.0.7:6380/0", "10.0.0.7:6380", id="host and port"),
        pytest.param("redis://unit-0", "unit-0:6379", id="default port"),
    ],
)
def test_addresses_are_read_and_shown_without_password(url: str, shown: str) -> None:
    assert str(ServerAddress.parse(url)) == shown
    assert "pw" not in repr(ServerAddress.parse(url))


@pytest.mark.parametrize("url", ["http://x", "unix://:pw@", "redis:///0", "redis://host/3", "/tmp/x.sock"])
def test_other_addresses_are_refused_with_the_cure(url: str) -> None:
    with pytest.raises(ValueError, match=r"Use unix://:password@/path or redis://:password@host:port/0\."):
        ServerAddress.parse(url)
