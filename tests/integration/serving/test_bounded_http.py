"""The HTTP server of coordinator and engine: clients that keep it waiting are closed, those that it answers are not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from rljob_api.serving.connections import Bounds
from rljob_workers.bounded_http import BOUNDS, MOST_HEAD_BYTES, MOST_PIPELINED, BoundedServer, within_files

PATIENCE_SECONDS = 60.0
"""Never measured."""
MOST = 8
WHOLE = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
MUCH = 64 << 20
LONG = b"GET /long HTTP/1.1\r\nHost: here\r\n\r\n"


class Server:
    """In a thread of its own. `/long` is answered once `release` is set, `/much` with more than any buffer holds."""

    def __init__(self, request_seconds: float = 0.3) -> None:
        self.release = threading.Event()
        self.waiting = threading.Semaphore(0)
        self.listener = socket.create_server(("127.0.0.1", 0))
        bounds = Bounds(most=MOST, request_seconds=request_seconds, reader_seconds=0.3)
        self._server = BoundedServer(self._app, bounds, log_config=None, timeout_keep_alive=3600)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self.listener]})

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.release.set()
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join()

    def connect(self, sent: bytes = b"") -> socket.socket:
        client = socket.create_connection(self.listener.getsockname(), PATIENCE_SECONDS)
        client.sendall(sent)
        return client

    def wait_for_connections(self, count: int) -> None:
        (connections,) = self._server._ports._known.values()
        while len(connections) != count:
            threading.Event().wait(0.01)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body", False):
            pass
        if scope["path"] == "/long":
            self.waiting.release()
            await asyncio.to_thread(self.release.wait)
        body = b"x" * MUCH if scope["path"] == "/much" else b"answered"
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(*getattr(request, "param", ()))
    made.start()
    yield made
    made.stop()


PATIENT = pytest.mark.parametrize("server", [[2 * PATIENCE_SECONDS]], indirect=True, ids=["of much time"])


def answer(client: socket.socket) -> bytes:
    """What comes until the whole answer is there, or the server has closed the connection."""
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while not received.endswith(b"answered") and (data := client.recv(65536)):
            received += data
    return bytes(received)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="connects only"),
        pytest.param(b"GET /", id="half a request line"),
        pytest.param(b"GET / HTTP/1.1\r\nX: ", id="headers that never end"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf", id="a body that never comes"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nha", id="half a chunk"),
    ],
)
def test_who_does_not_end_a_request_is_closed(server: Server, sent: bytes) -> None:
    with server.connect(sent) as client:
        assert answer(client) == b""
    with server.connect(WHOLE) as client:
        assert answer(client).endswith(b"answered")


POST = b"POST / HTTP/1.1\r\nHost: h\r\n"
CHUNKS = POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * MOST_HEAD_BYTES


@PATIENT
@pytest.mark.parametrize(
    "begun",
    [
        pytest.param(b"GET /", id="a request line"),
        pytest.param(b"GET / HTTP/1.1\r\nX: ", id="a header"),
        pytest.param(CHUNKS + b"0\r\nX: ", id="a trailer"),
        pytest.param(CHUNKS + b"1;", id="an extension of a chunk"),
    ],
)
def test_a_client_that_sends_a_head_without_end_is_refused(server: Server, begun: bytes) -> None:
    with server.connect(begun) as client:
        for _ in range(64):  # more than the system takes while no one reads
            with contextlib.suppress(OSError):
                client.sendall(b"a" * MOST_HEAD_BYTES)
        assert answer(client)[:12] in (b"HTTP/1.1 400", b"")
    with server.connect(WHOLE) as client:
        assert answer(client).endswith(b"answered")


def test_a_body_may_be_as_long_as_it_is(server: Server) -> None:
    whole = POST + b"Content-Length: %d\r\n\r\n" % (8 * MOST_HEAD_BYTES) + b"x" * (8 * MOST_HEAD_BYTES)
    with server.connect(whole) as client:
        assert answer(client).startswith(b"HTTP/1.1 200")
    with server.connect(CHUNKS + b"0\r\n\r\n") as client:
        assert answer(client).startswith(b"HTTP/1.1 200")


def test_requests_that_come_at_once_are_answered_one_by_one(server: Server) -> None:
    with server.connect(WHOLE * MOST_PIPELINED) as client:
        received = b""
        while received.count(b"answered") < MOST_PIPELINED:
            received += client.recv(65536)
    assert received.count(b"HTTP/1.1 200") == MOST_PIPELINED


def test_a_client_whose_requests_pile_up_is_refused(server: Server) -> None:
    with server.connect(LONG + WHOLE * 2 * MOST_PIPELINED) as client:
        server.waiting.acquire()
        assert answer(client).startswith(b"HTTP/1.1 400")
    server.release.set()
    with server.connect(WHOLE) as client:
        assert answer(client).endswith(b"answered")


def test_half_of_a_second_request_is_closed_too(server: Server) -> None:
    with server.connect(WHOLE) as client:
        assert answer(client).endswith(b"answered")
        client.sendall(b"GET / HT")
        assert answer(client) == b""


def test_who_reads_no_answer_is_closed(server: Server) -> None:
    with server.connect(b"GET /much HTTP/1.1\r\nHost: here\r\n\r\n") as client, server.connect(LONG) as other:
        server.waiting.acquire()
        server.wait_for_connections(1)
        server.release.set()
        assert answer(other).endswith(b"answered")
        assert len(answer(client)) < MUCH, "only what was on its way"


def test_one_that_waits_for_its_answer_outlives_any_number_of_others(server: Server) -> None:
    with server.connect(LONG) as polls:
        server.waiting.acquire()
        others = [server.connect(b"GET /") for _ in range(3 * MOST)]
        closed = [other for other in others if answer(other) == b""]
        assert len(closed) == len(others)
        server.release.set()
        assert answer(polls).endswith(b"answered")
    for other in others:
        other.close()


def test_one_that_is_quiet_between_two_requests_is_left(server: Server) -> None:
    """Ranks keep their connections; a closed one would look like a dead server."""
    with server.connect(WHOLE) as client, server.connect(b"GET /") as half:
        assert answer(client).endswith(b"answered")
        assert answer(half) == b"", "its time is over, which the quiet one had, too"
        client.sendall(WHOLE)
        assert answer(client).endswith(b"answered")


@pytest.mark.parametrize("files", [1024, 4096, 16384, 65536], ids="{} descriptors".format)
def test_three_full_ports_leave_descriptors_for_the_rest_of_the_process(files: int) -> None:
    most = within_files(BOUNDS, files).most
    assert 64 <= most <= BOUNDS.most
    assert files - 3 * most >= 256


def test_a_server_takes_no_more_connections_than_asked_for() -> None:
    asked = Bounds(most=MOST, request_seconds=1.0, reader_seconds=1.0)
    assert within_files(asked, 1 << 20) == asked
