"""Addresses that swallow everything, and servers that fall silent: each client notices, and says what it waited for."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.names import Lineage, Stream, WeightVersion
from rljob_api.wire.identity import Endpoints, WeightId
from rljob_api.wire.weights import OfferedPart
from rljob_workers.dcs.errors import CoordinatorUnreachable, WeightTimeout
from rljob_workers.dcs.membership.coordinator_http import CoordinatorClient
from rljob_workers.dcs.weights.chunk_transfer import PullTerms, WantedPart, pull
from rljob_workers.launcher.coordinator_calls import ReplicaQuestion
from rljob_workers.transfer_queue.control.connection import Subscription
from rljob_workers.transfer_queue.errors import StorageUnreachable
from rljob_workers.transfer_queue.units import StorageUnit

FAR = 3600.0
"""A test whose client minded only this deadline would not end."""


@pytest.fixture
def hole() -> Iterator[int]:
    """A port of this machine where no one is ever let in: its backlog is full, and the system drops what comes."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = []
    for _ in range(3):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        waiting.append(filler)
    yield listener.getsockname()[1]
    for filler in waiting:
        filler.close()
    listener.close()


@pytest.fixture
def mute() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(params=["hole", "mute"])
def port(request: pytest.FixtureRequest) -> int:
    return int(request.getfixturevalue(request.param))


def endpoints(port: int, host: str = "127.0.0.1") -> Endpoints:
    return Endpoints(
        job="test",
        coordinator=f"http://{host}:{port}",
        token="t",
        control_redis=f"redis://{host}:{port}/0",
        storage_units=[f"redis://{host}:{port}/0"],
        run_dir="",
        weights_dir="",
    )


def test_the_coordinators_client_names_whom_it_waited_for(port: int) -> None:
    client = CoordinatorClient(endpoints(port))
    with pytest.raises(CoordinatorUnreachable, match=f"the coordinator at http://127.0.0.1:{port} has not answered"):
        client.call("GET", "/v1/status", None, deadline=time.monotonic())
    client.close()


def test_a_storage_unit_is_given_up_long_before_a_far_deadline(port: int) -> None:
    unit = StorageUnit(3, f"redis://127.0.0.1:{port}/0")
    with pytest.raises(StorageUnreachable, match=f"storage unit 3 .127.0.0.1:{port}. has not answered"):
        unit.generation(deadline=time.monotonic() + FAR)


def test_weights_are_given_up_with_the_address_that_failed(port: int, tmp_path: Path) -> None:
    part = OfferedPart(index=0, num_bytes=4, chunk_bytes=4, digest="0" * 32, owner=f"127.0.0.1:{port}")
    wanted = WantedPart(Stream.POLICY, WeightId(lineage=Lineage(1), version=WeightVersion(1)), part)
    terms = PullTerms("t", time.monotonic() + 1, lambda: None)
    with pytest.raises(WeightTimeout, match=f"0 of 1 chunks came .* last: 127.0.0.1:{port}: "):
        pull(wanted, tmp_path / "weights", terms, iter([[f"127.0.0.1:{port}"]] * 100))


def test_a_subscription_that_cannot_be_made_costs_a_recheck(port: int) -> None:
    notices = Subscription(f"redis://127.0.0.1:{port}/0", sleep=lambda _: None)
    assert not notices.listen("task")
    notices.wait(1.0)
    assert notices.noticed("task")
    notices.close()


NOWHERE = "no-such-service.default.svc.invalid"


def test_a_name_that_does_not_resolve_is_a_coordinator_that_is_not_there_yet() -> None:
    client = CoordinatorClient(endpoints(8080, NOWHERE))
    with pytest.raises(CoordinatorUnreachable, match=r"has not answered for .*cannot connect"):
        client.call("GET", "/v1/status", None, deadline=time.monotonic())
    client.close()
    question = ReplicaQuestion(endpoints(8080, NOWHERE), "uid")
    assert question.turn() is None
    question.close()


def test_a_name_that_does_not_resolve_is_a_storage_unit_that_is_away() -> None:
    unit = StorageUnit(0, f"redis://{NOWHERE}:6379/0")
    with pytest.raises(StorageUnreachable, match="cannot be reached"):
        unit.generation(deadline=time.monotonic() + FAR)
