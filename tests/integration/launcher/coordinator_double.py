"""A coordinator reduced to what a launcher speaks with, over real HTTP: orders out, polls and failure reports in."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rljob_api.names import Epoch
from rljob_api.spec import RLJob
from rljob_api.wire.epochs import PodOrder, PodPhase
from rljob_api.wire.failures import Failure
from rljob_api.wire.identity import PodKey, Refusal
from rljob_api.wire.launchers import LauncherAnswer, LauncherHello, LauncherPoll

TOKEN = "token-of-the-test"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: Any) -> None:
        """Clients that are killed reset their connections: nothing to say."""


class CoordinatorDouble:
    """Keeps what launchers said; tests set orders and read."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.hellos: list[LauncherHello] = []
        self.polls: dict[str, LauncherPoll] = {}
        self.failures: list[Failure] = []
        self.refuse_failures = 0
        self.job: RLJob | None = None
        """What every epoch that a launcher has not learned of runs with; None: what its file says."""
        self._orders: dict[str, PodOrder] = {}
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def order(self, pod: PodKey, epoch: int = 1, generation: int = 0, phase: PodPhase = PodPhase.RUN) -> None:
        with self.changed:
            self._orders[str(pod)] = PodOrder(pod=pod, epoch=Epoch(epoch), generation=generation, phase=phase)
            self.changed.notify_all()

    def state(self, pod: PodKey) -> LauncherPoll | None:
        """The last poll of the pod's newest launcher."""
        with self.changed:
            owner = self._owner(pod)
            return None if owner is None else self.polls.get(owner)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _owner(self, pod: PodKey) -> str | None:
        return next((hello.launcher for hello in reversed(self.hellos) if hello.pod == pod), None)

    def answer(self, path: str, body: bytes) -> tuple[int, str]:
        with self.changed:
            if path == "/v1/launchers":
                self.hellos.append(LauncherHello.model_validate_json(body))
                return 200, "{}"
            if path == "/v1/failures":
                if self.refuse_failures:
                    self.refuse_failures -= 1
                    return 503, Refusal(reason="NotOpen", message="not now").model_dump_json()
                self.failures.append(Failure.model_validate_json(body))
                return 200, "{}"
            return self._poll(path.split("/")[3], LauncherPoll.model_validate_json(body))

    def _poll(self, launcher: str, poll: LauncherPoll) -> tuple[int, str]:
        pod = next(hello.pod for hello in self.hellos if hello.launcher == launcher)
        self.polls[launcher] = poll
        deadline = time.monotonic() + poll.wait_seconds
        while self._owner(pod) == launcher and self._orders.get(str(pod)) == poll.carried:
            if not self.changed.wait(deadline - time.monotonic()):
                break
        if self._owner(pod) != launcher:
            refusal = Refusal(reason="Fenced", message=f"a later launcher of {pod} has registered")
            return 409, refusal.model_dump_json()
        order = self._orders.get(str(pod))
        is_new = order is not None and (poll.carried is None or poll.carried.epoch != order.epoch)
        answer = LauncherAnswer(order=order, world_size=1, first_rank=0, job=self.job if is_new else None)
        return 200, answer.model_dump_json()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, text = 401, json.dumps({})
                if self.headers["X-RLJob-Token"] == TOKEN:
                    status, text = double.answer(self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args: Any) -> None:
                """Says nothing."""

        return Handler
