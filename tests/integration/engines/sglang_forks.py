"""Real SGLang servers for tests: a process that has SGLang imported forks one for each start, as a launcher does.

    python -m tests.integration.engines.sglang_forks FD

One such process in a run of pytest, begun when it is first asked for: an import takes seconds, a fork one.
"""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rljob_workers.engines.backend import EngineSettings, EngineSite, Fork
from rljob_workers.engines.incarnation import EngineIdentity, write_identity
from rljob_workers.engines.sglang.sglang_backend import SGLANG
from rljob_workers.launcher.preload import limit_thread_pools
from tests.integration.children import die_with_tests

_ROOT = Path(__file__).parents[3]
_MESSAGE_BYTES = 1 << 20
_ADDRESS = f"\0rljob-test-sglang-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
"""In no folder. The same in all processes of a run."""


@dataclass(frozen=True, slots=True)
class Start:
    """One incarnation of a server."""

    settings: EngineSettings
    site: EngineSite
    incarnation: str
    identity: Path
    log: Path


class SglangForks:
    """The tests' side: one connection of this process to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with _only_one():
            try:
                self._socket.connect(_ADDRESS)
            except ConnectionRefusedError:
                self._begin()

    def start(self, start: Start, listener: socket.socket) -> int:
        """Forks a server that listens on `listener`; its process, which leads a group."""
        with self._lock:
            socket.send_fds(self._socket, [pickle.dumps(start)], [listener.fileno()])
            answer = self._socket.recv(64)
        assert answer, "the process that forks SGLang has ended"
        return int(answer)

    def _begin(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as theirs:
            theirs.bind(_ADDRESS)
            theirs.listen(32)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
                preexec_fn=die_with_tests,
            )
        self._socket.connect(_ADDRESS)  # answered when it has imported everything


@contextmanager
def _only_one() -> Iterator[None]:
    """Of the processes of one run of pytest."""
    with Path(tempfile.gettempdir(), f"{_ADDRESS[1:]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            Path(lock.name).unlink(missing_ok=True)


@cache
def sglang_forks() -> SglangForks:
    """Those of this run of pytest."""
    return SglangForks()


def main(door: socket.socket) -> None:
    """Until the tests that began it have ended."""
    from rljob_workers.launcher.forking import reap
    from rljob_workers.launcher.preload import preload

    limit_thread_pools()
    preload()
    SGLANG.preload()
    gc.freeze()
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the tests
    callers: list[socket.socket] = []
    watched: list[int | socket.socket]
    while True:
        watched = [door, wake, *callers]
        readable, _, _ = select.select(watched, [], [])
        if wake in readable:
            os.read(wake, 512)
            reap()
        if door in readable:
            callers.append(door.accept()[0])
        for caller in [one for one in callers if one in readable]:
            if not _serve(caller, [door, *callers]):
                callers.remove(caller)


def _serve(caller: socket.socket, ours: list[socket.socket]) -> bool:
    """One start; False where the caller has gone."""
    from rljob_workers.launcher.forking import fork_child

    message, fds, _, _ = socket.recv_fds(caller, _MESSAGE_BYTES, 1)
    if not message:
        caller.close()
        return False
    start: Start = pickle.loads(message)

    with socket.socket(fileno=fds[0]) as listener:
        child = fork_child(lambda: _live(start, listener), start.log, close=ours)
    caller.send(str(child.pid).encode())
    return True


def _live(start: Start, listener: socket.socket) -> int:
    """As the launcher's child does."""
    shutil.rmtree(start.site.folder, ignore_errors=True)
    start.site.folder.mkdir(parents=True)
    url = f"http://127.0.0.1:{start.site.port}"
    write_identity(start.identity, EngineIdentity(start.incarnation, os.getpid(), url))
    command = SGLANG.command(start.settings, start.site)
    assert isinstance(command, Fork)
    return command.serve(listener, start.incarnation)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
