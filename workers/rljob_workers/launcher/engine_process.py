"""The child that becomes an engine server: on the launcher's socket after a fork, or as a program of its own.

Called by `engine_keeper`, in the forked child only.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import NoReturn

from rljob_workers.engines.backend import Command, EngineSettings, Exec
from rljob_workers.launcher.device_slices import require_cuda
from rljob_workers.launcher.forking import exec_program
from rljob_workers.launcher.preload import THREAD_POOLS


def become_engine(
    command: Command, settings: EngineSettings, port: socket.socket, incarnation: str, identity: Path
) -> int:
    """Serves as `incarnation`; the exit code. A program takes this process over and does not return."""
    if isinstance(command, Exec):
        host, number = port.getsockname()
        _write_identity(identity, {"incarnation": incarnation, "pid": os.getpid(), "url": f"http://{host}:{number}"})
        _become_program(command.arguments, settings)
    require_cuda()
    return command.serve(port, incarnation)


def _become_program(arguments: tuple[str, ...], settings: EngineSettings) -> NoReturn:
    """The launcher limits thread pools for its own imports; the program's are as large as the spec says."""
    threads = {name: str(settings.threads) for name in THREAD_POOLS}
    exec_program(arguments, {**os.environ, **threads})


def _write_identity(path: Path, identity: dict[str, object]) -> None:
    """Before the server can answer, and at once for readers: who asks before and after a request sees a new life."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(identity))
    beside.replace(path)
