"""The preloaded parent of all launchers of one machine.

    python -m rljob_workers.launcher.parent --fd FD --backend Flat --engine Torch

Started by the supervisor with its end of a socket pair (`rljob_api.wire.processes`). It imports the heavy libraries,
then forks a launcher per `SpawnLauncher` line and reports every end. It ends with its socket, and all launchers too.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_SUCCEEDED, EngineKind
from rljob_api.spec.roles import TrainerBackend
from rljob_api.wire.identity import Endpoints
from rljob_api.wire.processes import LauncherExited, LauncherSpawned, ParentReady, Preloads, SpawnLauncher
from rljob_workers.launcher.preload import limit_thread_pools, preload, require_single_thread

limit_thread_pools()  # before anything below pulls in NumPy or torch

from rljob_workers.launcher.forking import (  # noqa: E402 -- see above
    Child,
    SignalPipe,
    fork_child,
    reap,
)
from rljob_workers.launcher.launcher import Bodies, run_launcher  # noqa: E402 -- see above
from rljob_workers.launcher.pod_devices import require_no_cuda  # noqa: E402 -- see above

END_GRACE_SECONDS = 1.0
"""After the socket's end the supervisor is gone, and coordinator and Redis with it: nothing can be drained any more."""

SEND_SECONDS = 10.0
"""A supervisor that has not read its socket for this long is taken for dead."""

_log = logging.getLogger(__name__)


class Parent:
    """Serves one supervisor. Single-threaded, since it forks."""

    def __init__(self, control: socket.socket, signals: SignalPipe, bodies: Bodies) -> None:
        """`run` begins it."""
        self._control = control
        self._signals = signals
        self._bodies = bodies
        self._received = b""
        self._launchers: dict[int, tuple[Child, SpawnLauncher]] = {}
        self._ended = False

    def run(self) -> None:
        """Until the socket ends or SIGTERM; no launcher is left when it returns."""
        self._send(ParentReady(pid=os.getpid()))
        while not self._ended and not self._signals.terminated:
            self._sleep([self._control.fileno(), self._signals.fileno()], None)
            self._signals.drain()
            self._collect()
            self._read()
        self._end()

    def _read(self) -> None:
        # MSG_DONTWAIT would not do: Python waits for a socket that has a timeout before it calls recv.
        readable, _, _ = select.select([self._control], [], [], 0)
        if not readable:
            return
        try:
            data = self._control.recv(1 << 16)
        except OSError as error:
            _log.info("the supervisor's socket broke: %s", error)
            data = b""
        self._ended = self._ended or not data
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._spawn(SpawnLauncher.model_validate_json(line))

    def _spawn(self, spawn: SpawnLauncher) -> None:
        require_single_thread()
        require_no_cuda()
        endpoints = Endpoints.model_validate_json(Path(spawn.endpoints).read_bytes())
        log = Path(endpoints.run_dir) / "logs" / f"{spawn.pod}.log"
        # The socket is the parent's, and must end when the parent does.
        child = fork_child(lambda: run_launcher(spawn, self._bodies), log, close=(self._control, self._signals))
        self._launchers[child.pid] = (child, spawn)
        self._send(LauncherSpawned(pod_uid=spawn.pod_uid, pid=child.pid))

    def _collect(self) -> None:
        for ended in reap():
            known = self._launchers.pop(ended.pid, None)
            if known is not None:
                self._send(LauncherExited(pod_uid=known[1].pod_uid, pid=ended.pid, exit_code=ended.code))

    def _send(self, message: ParentReady | LauncherSpawned | LauncherExited) -> None:
        try:
            self._control.sendall(message.model_dump_json().encode() + b"\n")
        except OSError as error:  # gone, or too busy to read for long: either way the socket has ended
            _log.info("the supervisor does not hear: %s", error)
            self._ended = True

    def _end(self) -> None:
        for child, _ in self._launchers.values():
            child.terminate()
        deadline = time.monotonic() + END_GRACE_SECONDS
        while self._launchers and time.monotonic() < deadline:
            self._sleep([self._signals.fileno()], deadline - time.monotonic())
            self._signals.drain()
            self._collect()
        for child, _ in self._launchers.values():
            child.kill()
        while self._launchers:
            self._sleep([self._signals.fileno()], END_GRACE_SECONDS)
            self._signals.drain()
            self._collect()

    @staticmethod
    def _sleep(descriptors: Sequence[int], seconds: float | None) -> None:
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, select.POLLIN)
        poller.poll(None if seconds is None else max(0.0, seconds) * 1000)


def serve(fd: int, bodies: Bodies, load: Callable[[], None] = preload) -> int:
    """Loads, then serves the supervisor at the other end of `fd`. What cannot be imported now never can: no restart."""
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    control.settimeout(SEND_SECONDS)
    try:
        load()
    except ImportError as error:
        control.close()
        sys.stderr.write(
            f"{sys.executable} cannot import what a job needs: {error}. Mend the install of rljob[worker].\n"
        )
        return EXIT_BAD_MANIFEST
    Parent(control, SignalPipe(), bodies).run()
    return EXIT_SUCCEEDED


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(prog="python -m rljob_workers.launcher.parent")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the supervisor's socket")
    parser.add_argument("--backends", default=TrainerBackend.FLAT.value, help="of the job's models, joined by commas")
    parser.add_argument("--engine", type=EngineKind, help="of its engines that are forked")
    parser.add_argument("--tokenizer-in-folder", action="store_true", help="the job's is not made from its config")
    options = parser.parse_args(arguments)
    trainers = frozenset(map(TrainerBackend, filter(None, options.backends.split(","))))
    preloads = Preloads(trainers, options.engine, options.tokenizer_in_folder)
    return serve(options.fd, Bodies(), partial(preload, preloads))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # thousands of modules would be taken apart first, some of them noisily
