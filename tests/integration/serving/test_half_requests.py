"""Two hundred clients that send no more than half a request, or read no answer, at each port that a process of a job,
or of the operator, opens: who asks properly is answered meanwhile. Real sockets; the launcher's clock stands still, so
that nothing is answered only because a client's time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path

import pytest
import redis
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rljob_api.names import Stream
from rljob_api.serving.page_server import PageServer
from rljob_api.wire.identity import WeightId
from rljob_operator.cluster.health_server import Checks, SideLoop, probe_pages
from rljob_workers.dcs.weights.chunk_requests import BOUNDS as CHUNK_BOUNDS
from rljob_workers.dcs.weights.chunk_transfer import (
    ChunkAnswer,
    ChunkRequest,
    ChunkServer,
    receive_message,
    send_message,
)
from rljob_workers.launcher.environment import LauncherState
from rljob_workers.launcher.probes import BOUNDS, ProbeServer
from rljob_workers.trainers.data_parallel import host_store
from tests.clock import Clock
from tests.integration.dcs.world import World, eventually, job
from tests.integration.engines.engine_process import engine_process, open_listener, talkative_model
from tests.integration.transfer_queue.servers import PASSWORD, running_servers

CLIENTS = 200
PATIENCE_SECONDS = 60.0
"""Never measured."""
QUESTION = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
HALVES = {
    "connects only": b"",
    "half a request line": b"GET /met",
    "headers that never end": b"GET /metrics HTTP/1.1\r\nHost: here\r\nX: ",
    "a body that never comes": b"POST /v1/launchers HTTP/1.1\r\nHost: here\r\nContent-Length: 4000\r\n\r\n{",
    "answers that are never read": QUESTION * 20,
}
"""What a client sends before it falls silent."""
Address = tuple[str, int] | str


@dataclass(frozen=True, slots=True)
class Port:
    """Where to connect, and a proper client that returns once it was answered."""

    address: Address
    ask: Callable[[], object]


def connect(address: Address) -> socket.socket:
    client = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE_SECONDS)
    client.connect(address)
    return client


@contextmanager
def held(address: Address, sent: bytes, count: int = CLIENTS) -> Iterator[list[socket.socket]]:
    """So many clients, of which none reads."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(address)) for _ in range(count)]
        for client in clients:
            client.setblocking(False)
            with contextlib.suppress(OSError):  # the server has closed it, or takes no more of it
                client.send(sent)
        yield clients


def get(port: int, path: str) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@contextmanager
def launcher() -> Iterator[tuple[Port, Port]]:
    """A launcher's loop: its port for probes, and that for scrapers."""
    listeners = [socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in range(2)]
    server, over = ProbeServer(listeners, lambda _: "gauge 1\n" * 4000, Clock()), threading.Event()

    def turn() -> None:
        while not over.is_set():
            poller = select.poll()
            server.watch(poller)
            poller.poll(20)
            server.turn(LauncherState())
        server.close()

    loop = threading.Thread(target=turn)
    loop.start()
    probes, metrics = (listener.getsockname() for listener in listeners)
    try:
        yield Port(probes, lambda: get(probes[1], "/livez")), Port(metrics, lambda: get(metrics[1], "/metrics"))
    finally:
        over.set()
        loop.join()


@contextmanager
def operator() -> Iterator[Port]:
    """The operator's probes in its side loop."""
    opened: list[int] = []
    over = threading.Event()

    async def serve() -> None:
        async with SideLoop() as side:
            server = await side.run(PageServer.open(probe_pages(Checks()), "127.0.0.1", 0))
            opened.append(server.port)
            await asyncio.to_thread(over.wait)
            await side.run(server.close())

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        eventually(lambda: opened, "the operator's port")
        yield Port(("127.0.0.1", opened[0]), lambda: get(opened[0], "/healthz"))
    finally:
        over.set()
        thread.join()


@contextmanager
def weights() -> Iterator[Port]:
    """A rank's server of weights."""
    server = ChunkServer("127.0.0.1", "token")
    host, _, number = server.address.rpartition(":")
    address = (host, int(number))

    def ask() -> None:
        with connect(address) as client:
            asked = ChunkRequest(
                token="token", stream=Stream.POLICY, id=WeightId(lineage=0, version=0), part=0, first=0, count=1
            )
            send_message(client, asked)
            assert "not served here" in str(ChunkAnswer.model_validate_json(receive_message(client)).refusal)

    try:
        yield Port(address, ask)
    finally:
        server.close()


@contextmanager
def rendezvous() -> Iterator[Port]:
    """The store at which ranks of a gang meet: torch's own."""
    hosted = host_store("127.0.0.1", timeout_seconds=PATIENCE_SECONDS)
    host, _, number = hosted.address.rpartition(":")
    made: list[TCPStore] = []

    def ask() -> None:
        made.append(TCPStore(host, int(number), is_master=False, timeout=timedelta(seconds=PATIENCE_SECONDS)))
        made[-1].set("a", "b")
        assert made[-1].get("a") == b"b"

    yield Port((host, int(number)), ask)


@contextmanager
def redis_port(url: str) -> Iterator[Port]:
    path = url.partition("@")[2]

    def ask() -> None:
        with redis.Redis(unix_socket_path=path, password=PASSWORD, socket_timeout=PATIENCE_SECONDS) as client:
            assert client.ping()

    yield Port(path, ask)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Port]]:
    folder: Path = tmp_path_factory.mktemp("ports")
    with ExitStack() as stack:
        servers = stack.enter_context(running_servers())
        world = World(servers, folder, job())
        stack.callback(world.stop)
        world.start()
        coordinator = int(world.endpoints.coordinator.rpartition(":")[2])
        engine = stack.enter_context(open_listener())
        stack.enter_context(engine_process(engine, talkative_model()))
        probes, metrics = stack.enter_context(launcher())
        made = {
            "launcher's probes": probes,
            "launcher's metrics": metrics,
            "coordinator": Port(("127.0.0.1", coordinator), lambda: get(coordinator, "/healthz")),
            "engine": Port(engine.getsockname(), lambda: get(engine.getsockname()[1], "/health")),
            "operator": stack.enter_context(operator()),
            "weights": stack.enter_context(weights()),
            "rendezvous": stack.enter_context(rendezvous()),
            "control Redis": stack.enter_context(redis_port(world.endpoints.control_redis)),
            "storage": stack.enter_context(redis_port(world.endpoints.storage_units[0])),
        }
        for port in made.values():
            port.ask()
        yield made


@pytest.mark.parametrize(
    "name",
    [
        *("launcher's probes", "launcher's metrics", "coordinator", "engine", "operator", "weights", "rendezvous"),
        *("control Redis", "storage"),
    ],
)
def test_a_proper_client_is_answered_while_two_hundred_hang(name: str, ports: dict[str, Port]) -> None:
    port = ports[name]
    for sent in HALVES.values():
        with held(port.address, sent):
            port.ask()
            port.ask()


def test_scrapers_take_no_probe_from_the_kubelet(ports: dict[str, Port]) -> None:
    """Each port of a launcher has connections of its own: those of one close none of the other."""
    with held(ports["launcher's probes"].address, b"GET /liv", BOUNDS.most - 1) as patient:
        with held(ports["launcher's metrics"].address, b"GET /met", 2 * BOUNDS.most):
            ports["launcher's metrics"].ask()
        patient[0].setblocking(True)
        patient[0].sendall(b"ez HTTP/1.1\r\n\r\n")
        assert patient[0].recv(12) == b"HTTP/1.1 200"


def test_half_requests_for_weights_cost_no_thread(ports: dict[str, Port]) -> None:
    before = threading.active_count()
    with held(ports["weights"].address, b"\0\0"):
        ports["weights"].ask()
        assert threading.active_count() < before + CLIENTS
    assert CHUNK_BOUNDS.most > CLIENTS
