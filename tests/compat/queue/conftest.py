"""Clients of the adapter on real servers; after each test the bytes are proven to be gone with their rows.

`make test-peer` runs these tests, and so does `make test-long`: no job needs the adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rljob_transfer_queue.client import TransferQueueClient
from rljob_transfer_queue.samplers import BaseSampler, SequentialSampler
from rljob_transfer_queue.settings import Servers as Names
from rljob_transfer_queue.settings import Settings
from tests.integration.transfer_queue.servers import Servers, running_servers


@pytest.fixture(scope="session")
def compat_servers() -> Iterator[Servers]:
    with running_servers() as servers:
        yield servers


@pytest.fixture
def servers(compat_servers: Servers) -> Servers:
    compat_servers.wipe()
    return compat_servers


@pytest.fixture
def names(servers: Servers) -> Names:
    return Names(servers.control.url, tuple(unit.url for unit in servers.units))


MakeClient = Callable[..., TransferQueueClient]


@pytest.fixture
def make_client(servers: Servers, names: Names) -> Iterator[MakeClient]:
    """Clients of one queue; the first says what its settings are."""
    clients: list[TransferQueueClient] = []

    def make(sampler: BaseSampler | None = None, *, polling: bool = True) -> TransferQueueClient:
        client = TransferQueueClient(f"client-{len(clients)}", names)
        clients.append(client)
        client.calls.session.configure(Settings(sampler or SequentialSampler(), polling).dump(), "test")
        return client

    yield make
    if clients:
        # The test may have closed its own.
        clients.append(TransferQueueClient("last", names))
        for partition in clients[-1].get_partition_list():
            clients[-1].clear_partition(partition)
    for client in clients:
        client.close()
    assert stored_chunks(servers) == 0
    assert control_keys(servers) <= {"tq:numbers", "tq:config", "tq:units", "tq:swept"}


def stored_chunks(servers: Servers) -> int:
    """On all units; a unit's mark is no chunk."""
    count = 0
    for unit in servers.units:
        with unit.admin() as admin:
            count += sum(1 for _ in admin.scan_iter("*:*:*"))
    return count


def control_keys(servers: Servers) -> set[str]:
    """What is left on the control Redis, but for answers that are kept for a while."""
    with servers.control.admin() as admin:
        return {key.decode() for key in admin.scan_iter() if not key.startswith(b"tq:call:")}
