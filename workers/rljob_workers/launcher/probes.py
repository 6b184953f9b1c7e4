"""The kubelet's probes and a pod's metrics, answered from the launcher's loop by a small HTTP server that never waits.

    /startupz   200 once the launcher is registered and has received an order
    /livez      200: the loop turns
    /readyz     200 while every rank of the pod is Ready in the present order, and when the job is done
    /metrics    the pod's gauges

A client that is slow, broken or one too many is dropped. One request a connection.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rljob_api.wire.epochs import PodPhase
from rljob_api.wire.launchers import EngineState
from rljob_workers.launcher.environment import EngineFacts, LauncherState
from rljob_workers.telemetry.exposition import Family, Labels, Sample, render

_POD = ("role", "replica")


_ENGINE = ("engine",)


FAMILIES = {
    "rljob_pod_ranks": Family("Ranks of the pod.", _POD),
    "rljob_pod_ranks_up": Family("Its ranks that run.", _POD),
    "rljob_pod_ranks_ready": Family("Its ranks that are ready.", _POD),
    "rljob_pod_rank_starts_total": Family("Starts of its ranks.", _POD),
    "rljob_pod_container_restarts_total": Family("Restarts of its container.", _POD),
    "rljob_pod_seen_seq": Family("Highest number of a change of the queue that it has seen.", _POD),
    "rljob_pod_epoch": Family("Epoch that it was ordered.", _POD),
    "rljob_pod_generation": Family("Generation that it was ordered.", _POD),
    "rljob_pod_engine_running": Family("1 while the engine runs.", _POD, _ENGINE),
    "rljob_pod_engine_starts_total": Family("Starts of the engine.", _POD, _ENGINE),
}
"""All that a launcher may export."""


def exposition(job: str, role: str, container_restarts: int, state: LauncherState) -> str:
    """All samples. `role` and `replica` of the order are labels."""
    order = state.order
    pod = tuple(zip(_POD, (role, "" if order is None else str(order.pod.replica)), strict=True))
    figures: dict[str, float] = {
        "ranks": state.num_ranks,
        "ranks_up": state.ranks_up,
        "ranks_ready": state.ranks_ready,
        "rank_starts_total": state.rank_starts,
        "container_restarts_total": container_restarts,
        "seen_seq": state.seen_seq,
    }
    if order is not None:
        figures |= {"epoch": order.epoch, "generation": order.generation}
    own: list[Sample] = [(f"rljob_pod_{name}", pod, value) for name, value in figures.items()]
    return render(FAMILIES, (("job", job),), [*own, *_of_engines(pod, state.engines)])


def _of_engines(pod: Labels, engines: Sequence[EngineFacts]) -> Iterator[Sample]:
    """The only engine of a pod has the pod's labels; of several, each has its index as one more."""
    for index, engine in enumerate(engines):
        if engine.state is not None:
            labels = (*pod, ("engine", str(index))) if len(engines) > 1 else pod
            yield "rljob_pod_engine_running", labels, float(engine.state is EngineState.RUNNING)
            yield "rljob_pod_engine_starts_total", labels, engine.starts


CLIENT_SECONDS = 5.0
"""A client may be connected for so long."""


MAX_CLIENTS = 32


MAX_REQUEST_BYTES = 8192


_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


@dataclass(frozen=True, slots=True)
class Reply:
    """Status and body of an answer."""

    status: int
    body: str


def reply_to(path: str, state: LauncherState, metrics: Callable[[LauncherState], str]) -> Reply:
    """The answer to `GET path`. Pure."""
    match path.partition("?")[0]:
        case "/livez":
            return Reply(200, "the launcher's loop turns\n")
        case "/startupz":
            return Reply(200, "an order was heard\n") if state.order else Reply(503, "no order was heard yet\n")
        case "/readyz":
            return _readiness(state)
        case "/metrics":
            return Reply(200, metrics(state))
        case _:
            return Reply(404, "there are /livez, /readyz, /startupz and /metrics\n")


def _readiness(state: LauncherState) -> Reply:
    if state.order is None:
        return Reply(503, "no order was heard yet\n")
    match state.order.phase:
        case PodPhase.DONE:
            return Reply(200, "the job is done\n")  # nothing lacks here, and an eviction must not wait for it
        case PodPhase.DRAIN:
            return Reply(503, "the pod drains\n")
        case PodPhase.RUN:
            text = f"{state.ranks_ready} of {state.num_ranks} ranks are Ready\n"
            return Reply(200 if state.ranks_ready == state.num_ranks else 503, text)


class _Client:
    """One connection: read a request's head, then write the answer."""

    def __init__(self, connection: socket.socket, expires: float) -> None:
        self.connection = connection
        self.expires = expires
        self.received = bytearray()
        self.answer: bytes | None = None


class ProbeServer:
    """Listens as long as the launcher lives."""

    def __init__(
        self,
        listener: socket.socket,
        metrics: Callable[[LauncherState], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._metrics = metrics
        self._clock = clock
        self._clients: list[_Client] = []

    def turn(self, state: LauncherState) -> None:
        """See the base."""
        self._accept()
        for client in list(self._clients):
            try:
                is_done = self._serve(client, state)
            except BlockingIOError:
                is_done = self._clock() >= client.expires
            except OSError:
                is_done = True
            if is_done:
                client.connection.close()
                self._clients.remove(client)

    def watch(self, poller: select.poll) -> None:
        """See the base."""
        if len(self._clients) < MAX_CLIENTS:
            poller.register(self._listener, select.POLLIN)
        for client in self._clients:
            poller.register(client.connection, select.POLLIN if client.answer is None else select.POLLOUT)

    def close(self) -> None:
        """See the base."""
        for client in self._clients:
            client.connection.close()
        self._clients.clear()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._clients) < MAX_CLIENTS:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._clients.append(_Client(connection, self._clock() + CLIENT_SECONDS))

    def _serve(self, client: _Client, state: LauncherState) -> bool:
        """Whether the client is done with. Raises BlockingIOError where it must be waited for."""
        while client.answer is None:
            data = client.connection.recv(4096)
            if not data:
                return True
            client.received += data
            if b"\r\n\r\n" in client.received or len(client.received) > MAX_REQUEST_BYTES:
                client.answer = self._answer(bytes(client.received), state)
        while client.answer:
            client.answer = client.answer[client.connection.send(client.answer) :]
        return True

    def _answer(self, request: bytes, state: LauncherState) -> bytes:
        parts = request.split(b"\r\n", 1)[0].split(b" ")
        if len(parts) == 3 and parts[0] in (b"GET", b"HEAD"):
            reply = reply_to(parts[1].decode(errors="replace"), state, self._metrics)
        else:
            reply = Reply(400, "this is not a GET request\n")
        body = reply.body.encode()
        head = (
            f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}\r\nContent-Type: text/plain; version=0.0.4;"
            f" charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if parts[0] == b"HEAD" else body)
