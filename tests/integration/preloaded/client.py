"""The tests' side of the preloaded interpreter: one in each process of pytest, begun when it is first asked for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import IO

from tests.integration.children import die_with_tests
from tests.integration.preloaded.image import MARK, MARK_CHARACTERS

_ROOT = Path(__file__).parents[3]
_MESSAGE_BYTES = 4096


class Forked:
    """As much of `subprocess.Popen` as tests use."""

    def __init__(self, server: _Server, pid: int) -> None:
        self._server = server
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        return self._server.codes.get(self.pid)

    def poll(self) -> int | None:
        self._server.receive(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.returncode) is None:
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
            self._server.receive(min(left, 1.0))
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """The interpreter's process and the socket to it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self.codes: dict[int, int] = {}
        with theirs:
            # Its own environment has room for the mark of whatever is forked from it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.preloaded.server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
                env={**os.environ, MARK: "0" * MARK_CHARACTERS},
                preexec_fn=die_with_tests,
            )
        self._expect("ready")

    def start(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str], fds: dict[int, int]
    ) -> Forked:
        request = {
            "program": program,
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(Path.cwd()),
            "wanted": list(fds),
        }
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(fds.values()))
            pid = self._expect("pid")
            self.codes.pop(pid, None)  # an older process had this number
        return Forked(self, pid)

    def receive(self, seconds: float) -> None:
        """Notes the ends that were reported, waiting for the first for so long."""
        with self._lock:
            self._socket.settimeout(seconds)
            with contextlib.suppress(BlockingIOError, TimeoutError):
                while True:
                    self._note(self._received())
                    self._socket.settimeout(0.0)

    def _expect(self, key: str) -> int:
        self._socket.setblocking(True)
        while True:
            message = self._received()
            if key in message and "code" not in message:
                return message[key]
            self._note(message)

    def _note(self, message: dict[str, int]) -> None:
        self.codes[message["pid"]] = message["code"]

    def _received(self) -> dict[str, int]:
        data = self._socket.recv(_MESSAGE_BYTES)
        assert data, f"the preloaded interpreter ended with {self._process.wait(60)}"
        message: dict[str, int] = json.loads(data)
        return message


@cache
def _server() -> _Server:
    return _Server()


def fork_program(
    program: str,
    arguments: Sequence[str],
    *,
    output: IO[bytes],
    environment: Mapping[str, str] = MappingProxyType({}),
    pass_fds: Sequence[int] = (),
) -> Forked:
    """A module or a file as a program, with what is added to this process's environment and both outputs to a file."""
    with Path(os.devnull).open("rb") as nothing:
        fds = {0: nothing.fileno(), 1: output.fileno(), 2: output.fileno(), **{fd: fd for fd in pass_fds}}
        return _server().start(program, arguments, {**os.environ, **environment}, fds)
