"""An interpreter that has imported the product once and forks a process for each start that a test asks for.

    python -m tests.integration.preloaded.server FD

A fork is what `python -m PROGRAM` would be after its imports: the descriptors, environment, folder and arguments that
were sent, signals as a new interpreter has them, failpoints read again. Nothing runs here between two forks, so that no
start can leave anything to the next. It dies with the tests, and what it forked dies with it.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from rljob_api.spec.roles import TrainerBackend
from rljob_api.wire.processes import Preloads
from rljob_workers.launcher.preload import limit_thread_pools, preload, require_single_thread
from tests.integration.preloaded.image import Image, become

limit_thread_pools()

MODULES = (
    "rljob_cli.commands.run",
    "rljob_operator.local.start",
    "rljob_workers.dcs.coordinator.serving",
    "rljob_workers.launcher.launcher",
    "rljob_workers.trainers.flat_model",
)
"""What the processes of a job import, beside what their parent preloads."""
BACKENDS = (TrainerBackend.FSDP, TrainerBackend.MEGATRON)
FDS = 32
REQUEST_BYTES = 1 << 20


def main(control: socket.socket) -> None:
    """Until the tests hang up: a message `{"pid": ...}` for each request, `{"pid": ..., "code": ...}` for each end."""
    preload(Preloads(tokenizer_in_folder=True))
    from rljob_workers.trainers import TRAINERS  # after the thread pools are limited

    of_trainers = [name for backend in BACKENDS for name in TRAINERS[backend].preload]
    for name in (*MODULES, *of_trainers):
        importlib.import_module(name)
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the tests
    _send(control, ready=1)
    while True:
        readable, _, _ = select.select([control.fileno(), wake], [], [])
        if wake in readable:
            os.read(wake, 512)
            _report_ends(control)
        if control.fileno() in readable:
            message, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES, FDS)
            if not message:
                return
            _send(control, pid=_fork(json.loads(message), fds))


def _fork(request: dict[str, Any], fds: list[int]) -> int:
    require_single_thread()
    image = Image(
        request["program"],
        request["arguments"],
        request["environment"],
        request["folder"],
        dict(zip(request["wanted"], fds, strict=True)),
    )
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        become(image, server)
    for fd in fds:
        os.close(fd)
    return pid


def _report_ends(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _send(control, pid=pid, code=os.waitstatus_to_exitcode(status))


def _send(control: socket.socket, **message: int) -> None:
    control.sendall(json.dumps(message).encode())


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
