"""The child that becomes an engine server: on the launcher's socket after a fork, or as a program of its own.

Called by `engine_keeper`, in the forked child only.
"""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import NoReturn

from rljob_workers.engines.backend import Command, EngineSettings, Exec
from rljob_workers.engines.identity import EngineIdentity, write_identity
from rljob_workers.launcher.device_slices import require_cuda
from rljob_workers.launcher.forking import exec_program
from rljob_workers.launcher.preload import THREAD_POOLS


def become_engine(command: Command, settings: EngineSettings, port: socket.socket, life: EngineIdentity) -> int:
    """Serves as `life`; the exit code. A program takes this process over and does not return."""
    if isinstance(command, Exec):
        _become_program(command, settings)
    os.environ.update(settings.env)
    require_cuda()
    return command.serve(port, life.incarnation)


def begin_life(port: socket.socket, incarnation: str, file: Path, folder: Path) -> EngineIdentity:
    """Says in `file` that this process is the engine behind `port` from now on, and gives it an empty folder."""
    host, number = port.getsockname()
    life = EngineIdentity(incarnation, os.getpid(), f"http://{host}:{number}")
    write_identity(file, life)
    remove_folder(folder)
    folder.mkdir(parents=True, mode=0o700)
    return life


def remove_folder(folder: Path) -> None:
    """What a life has left. Its processes are killed and may not have gone yet: the next start looks again."""
    shutil.rmtree(folder, ignore_errors=True)


def _become_program(command: Exec, settings: EngineSettings) -> NoReturn:
    """The launcher limits thread pools for its own imports; the program's are as large as the spec says."""
    command.prepare()
    threads = {name: str(settings.threads) for name in THREAD_POOLS}
    try:
        exec_program(command.arguments, {**os.environ, **threads, **command.environment, **settings.env})
    except ValueError as error:
        raise ValueError(f"spec.roles.rollout.engine: {error}") from error
