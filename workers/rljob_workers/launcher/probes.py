"""The kubelet's probes and a pod's metrics, answered from the launcher's loop by a small HTTP server that never waits.

    /startupz   200 once the launcher is registered and has received an order
    /livez      200: the loop turns
    /readyz     200 while every rank of the pod is Ready in the present order, and when the job is done
    /metrics    the pod's gauges

Probes have a port of their own, which no NetworkPolicy opens, and scrapers another; each has bounds of its own for
clients that are slow, broken or one too many. One request a connection.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rljob_api.serving.connections import Bounds, Connections, Waits
from rljob_api.serving.pages import NO_QUESTION, PageRequest, Reply, not_found
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


BOUNDS = Bounds(most=128, request_seconds=5.0, reader_seconds=5.0)
"""Bounds of each port."""


MAX_ACCEPTED = 64
"""New connections of a port in a turn: a client that connects all the time takes no more of the launcher's loop."""


PATHS = ("/livez", "/readyz", "/startupz", "/metrics")


def reply_to(path: str, state: LauncherState, metrics: Callable[[LauncherState], str]) -> Reply:
    """The answer to `GET path`. Pure."""
    match path:
        case "/livez":
            return Reply(200, "the launcher's loop turns\n")
        case "/startupz":
            return Reply(200, "an order was received\n") if state.order else Reply(503, "no order was received yet\n")
        case "/readyz":
            return _readiness(state)
        case "/metrics":
            return Reply(200, metrics(state))
        case _:
            return not_found(PATHS)


def _readiness(state: LauncherState) -> Reply:
    if state.order is None:
        return Reply(503, "no order was received yet\n")
    match state.order.phase:
        case PodPhase.DONE:
            return Reply(200, "the job is done\n")  # nothing lacks here, and an eviction must not wait for it
        case PodPhase.DRAIN:
            return Reply(503, "the pod drains\n")
        case PodPhase.RUN:
            text = f"{state.ranks_ready} of {state.num_ranks} ranks are Ready\n"
            return Reply(200 if state.ranks_ready == state.num_ranks else 503, text)


@dataclass(eq=False, slots=True)
class _Client:
    """One connection: the request's head is read, then the answer written."""

    connection: socket.socket
    request: PageRequest = field(default_factory=PageRequest)
    answer: bytes | None = None


class ProbeServer:
    """Listens as long as the launcher lives, at one port or several."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        metrics: Callable[[LauncherState], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ports = [_Port(listener, clock) for listener in listeners]
        self._metrics = metrics

    def turn(self, state: LauncherState) -> None:
        """See the base."""
        for port in self._ports:
            port.accept()
            for client in port.connections.open():
                self._serve(port, client, state)
            for client in port.connections.overdue():
                port.close(client)

    def watch(self, poller: select.poll) -> None:
        """See the base."""
        for port in self._ports:
            port.watch(poller)

    def close(self) -> None:
        """See the base."""
        for port in self._ports:
            for client in port.connections.open():
                port.close(client)
            port.listener.close()

    def _serve(self, port: _Port, client: _Client, state: LauncherState) -> None:
        try:
            self._bring_on(port, client, state)
        except BlockingIOError:
            return
        except OSError:
            pass
        port.close(client)

    def _bring_on(self, port: _Port, client: _Client, state: LauncherState) -> None:
        """Until the client is done with. Raises BlockingIOError where it must be waited for."""
        while client.answer is None:
            data = client.connection.recv(4096)
            if not data:
                return
            if client.request.take(data):
                client.answer = self._answer(client.request, state)
                port.connections.waits(client, Waits.READER)
        while client.answer:
            client.answer = client.answer[client.connection.send(client.answer) :]

    def _answer(self, request: PageRequest, state: LauncherState) -> bytes:
        path = request.path
        return request.answer(NO_QUESTION if path is None else reply_to(path, state, self._metrics))


class _Port:
    """A listening socket and its connections."""

    def __init__(self, listener: socket.socket, clock: Callable[[], float]) -> None:
        listener.setblocking(False)
        self.listener = listener
        self.connections: Connections[_Client] = Connections(BOUNDS, clock)

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            for _ in range(MAX_ACCEPTED):
                connection, peer = self.listener.accept()
                connection.setblocking(False)
                gives_way = self.connections.opened(_Client(connection), peer[0])
                if gives_way is not None:
                    self.close(gives_way)

    def watch(self, poller: select.poll) -> None:
        poller.register(self.listener, select.POLLIN)
        for client in self.connections.open():
            poller.register(client.connection, select.POLLIN if client.answer is None else select.POLLOUT)

    def close(self, client: _Client) -> None:
        self.connections.closed(client)
        client.connection.close()
