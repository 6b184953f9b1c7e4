"""Orders to a process and its answers: JSON lines over a socket pair, every answer with a deadline.

The benchmark's main process gives orders, the processes that hold a queue's client or the peer's server carry them out.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tests.integration.children import die_with_tests

ROOT = Path(__file__).parents[3]
START_SECONDS = 180.0
ANSWER_SECONDS = 120.0

Handler = Callable[..., dict[str, Any]]


class Child:
    """A process of this benchmark that takes orders; dies with this one."""

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        self.name = module.rpartition(".")[2]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                start_new_session=True,
                preexec_fn=die_with_tests,
            )
        self._socket = ours
        self._lines = ours.makefile("rb")
        self._order = "start"

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, order: str, **arguments: Any) -> None:
        """Sends an order; `answer` waits for its end."""
        self._order = order
        try:
            self._socket.settimeout(ANSWER_SECONDS)
            self._socket.sendall(json.dumps([order, arguments]).encode() + b"\n")
        except OSError:
            self._ended()

    def answer(self, seconds: float = ANSWER_SECONDS) -> Any:
        self._socket.settimeout(seconds)
        try:
            line = self._lines.readline()
        except TimeoutError:
            sys.exit(f"bench: {self.name} (pid {self.pid}) has not answered {self._order!r} within {seconds:.0f} s.")
        except OSError:
            line = b""
        if not line:
            self._ended()
        reply = json.loads(line)
        if "error" in reply:
            sys.exit(f"bench: {self.name} failed at {self._order!r}:\n{reply['error']}")
        return reply

    def ask(self, order: str, *, seconds: float = ANSWER_SECONDS, **arguments: Any) -> Any:
        self.send(order, **arguments)
        return self.answer(seconds)

    def _ended(self) -> NoReturn:
        code = self._process.wait(5)
        sys.exit(f"bench: {self.name} (pid {self.pid}) ended with {code} at {self._order!r}; it may have said why.")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._lines.close()
        self._socket.close()


def serve(handlers: Mapping[str, Handler]) -> None:
    """Carries out orders until the other side is gone."""
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        lines = channel.makefile("rwb")
        for line in lines:
            order, arguments = json.loads(line)
            try:
                reply = handlers[order](**arguments)
            except Exception:  # the edge of the process: the error is reported, and the main process ends the run
                reply = {"error": traceback.format_exc()}
            lines.write(json.dumps(reply).encode() + b"\n")
            lines.flush()
