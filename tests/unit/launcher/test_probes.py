"""Probes of a launcher: what is answered in which state, over real sockets that may be slow or broken."""

import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from rljob_api.names import Epoch, Role
from rljob_api.wire.epochs import PodOrder, PodPhase
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import EngineState
from rljob_workers.launcher.environment import EngineFacts, LauncherState
from rljob_workers.launcher.probes import BOUNDS, ProbeServer, exposition, reply_to
from tests.clock import Clock


def order(phase: PodPhase) -> PodOrder:
    return PodOrder(pod=PodKey(role=Role.ACTOR, replica=2), epoch=Epoch(3), generation=1, phase=phase)


BEFORE = LauncherState(num_ranks=1)
RUNS = LauncherState(order=order(PodPhase.RUN), num_ranks=1, ranks_up=1, ranks_ready=1, rank_starts=2, seen_seq=10**9)
STARTS = LauncherState(order=order(PodPhase.RUN), num_ranks=1, ranks_up=1)
DRAINS = LauncherState(order=order(PodPhase.DRAIN), num_ranks=1, ranks_up=1, ranks_ready=1)
DONE = LauncherState(order=order(PodPhase.DONE), num_ranks=1)


@pytest.mark.parametrize(
    ("path", "state", "status"),
    [
        pytest.param("/livez", BEFORE, 200, id="alive before anything was heard"),
        pytest.param("/startupz", BEFORE, 503, id="not started before an order was heard"),
        pytest.param("/startupz", STARTS, 200, id="started once an order was heard"),
        pytest.param("/readyz", BEFORE, 503, id="not ready without an order"),
        pytest.param("/readyz", STARTS, 503, id="not ready before its rank is"),
        pytest.param("/readyz", RUNS, 200, id="ready with all its ranks"),
        pytest.param("/readyz", DRAINS, 503, id="not ready while it drains"),
        pytest.param("/readyz", DONE, 200, id="ready when nothing is left to do"),
        pytest.param("/other", RUNS, 404, id="nothing else is there"),
    ],
)
def test_status(path: str, state: LauncherState, status: int) -> None:
    assert reply_to(path, state, lambda _: "").status == status


def test_metrics_are_prometheus_text() -> None:
    text = exposition("demo", "actor", 4, RUNS)
    labels = '{job="demo",role="actor",replica="2"}'
    head = "# HELP rljob_pod_ranks_ready Its ranks that are ready.\n# TYPE rljob_pod_ranks_ready gauge\n"
    assert f"{head}rljob_pod_ranks_ready{labels} 1\n" in text
    assert f"rljob_pod_seen_seq{labels} 1000000000\n" in text
    assert f"rljob_pod_container_restarts_total{labels} 4\n" in text
    assert "engine" not in text
    engine = LauncherState(order=order(PodPhase.RUN), engines=(EngineFacts(EngineState.RESTARTING, 2),))
    assert f"rljob_pod_engine_running{labels} 0.0\n" in exposition("demo", "actor", 0, engine)


def test_of_several_engines_each_has_a_label_and_one_that_was_not_started_has_no_sample() -> None:
    state = LauncherState(
        order=order(PodPhase.RUN),
        engines=(EngineFacts(EngineState.RUNNING, 1), EngineFacts(), EngineFacts(EngineState.STARTING, 3)),
    )
    text = exposition("demo", "rollout", 0, state)
    labels = 'job="demo",role="rollout",replica="2"'
    lines = [line for line in text.splitlines() if line.startswith("rljob_pod_engine_")]
    assert lines == [
        f'rljob_pod_engine_running{{{labels},engine="0"}} 1.0',
        f'rljob_pod_engine_running{{{labels},engine="2"}} 0.0',
        f'rljob_pod_engine_starts_total{{{labels},engine="0"}} 1',
        f'rljob_pod_engine_starts_total{{{labels},engine="2"}} 3',
    ]


class Served:
    """A probe server and what a loop would do with it."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.clock = Clock(0.0)
        self.server = ProbeServer([self.listener], lambda _: "metrics\n", self.clock)
        self.clients: list[socket.socket] = []

    def connect(self, data: bytes = b"") -> socket.socket:
        client = socket.create_connection(self.listener.getsockname(), 10)
        self.clients.append(client)
        client.sendall(data)
        return client

    def turns(self, count: int = 5) -> None:
        for _ in range(count):
            poller = select.poll()
            self.server.watch(poller)
            poller.poll(20)
            self.server.turn(RUNS)

    def turns_until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline
            self.turns(1)

    def serves(self, count: int) -> bool:
        return len(self.server._ports[0].connections) == count


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    for client in served.clients:
        client.close()
    served.server.close()


def is_answered(client: socket.socket) -> bool:
    return bool(select.select([client], [], [], 0)[0])


def answer(client: socket.socket) -> bytes:
    received = b""
    while data := client.recv(65536):
        received += data
    return received


def test_a_request_in_pieces_is_answered(served: Served) -> None:
    client = served.connect(b"GET /livez HT")
    served.turns()
    client.sendall(b"TP/1.1\r\nHost: here\r\n\r\n")
    served.turns_until(lambda: is_answered(client))
    assert answer(client).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("data", [b"\x16\x03\x01\r\n\r\n", b"POST /livez HTTP/1.1\r\n\r\n", b"x" * 9000])
def test_what_is_no_question_is_refused(served: Served, data: bytes) -> None:
    client = served.connect(data)
    served.turns_until(lambda: is_answered(client))
    with_answer = client.recv(4096)
    assert with_answer.startswith(b"HTTP/1.1 400 ")


def test_a_silent_client_is_dropped_in_the_end(served: Served) -> None:
    client = served.connect()
    served.turns_until(lambda: served.serves(1))
    served.clock.now = BOUNDS.request_seconds
    served.turns_until(lambda: served.serves(0))
    assert client.recv(1) == b""


def test_a_client_that_went_away_is_forgotten(served: Served) -> None:
    served.connect(b"GET /met").close()
    served.turns()
    client = served.connect(b"GET /metrics HTTP/1.1\r\n\r\n")
    served.turns_until(lambda: is_answered(client))
    assert answer(client).endswith(b"metrics\n")


def test_a_query_changes_nothing(served: Served) -> None:
    client = served.connect(b"GET /livez?verbose HTTP/1.1\r\n\r\n")
    served.turns_until(lambda: is_answered(client))
    assert answer(client).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_client_that_reads_no_answer_is_dropped_in_the_end(served: Served) -> None:
    served.server._metrics = lambda _: "x" * (64 << 20)
    client = served.connect(b"GET /metrics HTTP/1.1\r\n\r\n")
    served.turns_until(lambda: is_answered(client))
    served.clock.now = BOUNDS.reader_seconds
    served.turns_until(lambda: served.serves(0))


def test_one_client_too_many_takes_the_place_of_the_oldest_that_waits(served: Served) -> None:
    silent = []
    for count in range(BOUNDS.most):
        silent.append(served.connect())
        served.turns_until(lambda count=count: served.serves(count + 1))  # type: ignore[misc]
    late = served.connect(b"GET /livez HTTP/1.1\r\n\r\n")
    served.turns_until(lambda: is_answered(late))
    assert answer(late).startswith(b"HTTP/1.1 200")
    assert silent[0].recv(1) == b""
    assert not is_answered(silent[1])
