"""`rljob`, whose coordinator and preloaded parent are forked from it instead of being started as new interpreters.

Each is a child of the supervisor with a pid, a session, a log and a parent-death signal of its own, as the product
starts it; Redis and whatever else is started stays a program.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rljob_operator.local import processes
from tests.integration.preloaded.image import Image, become

FORKED = ("rljob_workers.dcs.coordinator", "rljob_workers.launcher.parent")

_start = processes.start


class ForkedProcess:
    """As much of asyncio's Process as the supervisor uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    async def wait(self) -> int | None:
        await self._ended.wait()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set()


async def _start_forked(
    argv: Sequence[str], log: Path, *, pass_fds: Sequence[int] = (), environment: Mapping[str, str] | None = None
) -> object:
    if list(argv[:2]) != [sys.executable, "-m"] or argv[2] not in FORKED:
        return await _start(argv, log, pass_fds=pass_fds, environment=environment)
    supervisor = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as out, Path(os.devnull).open("rb") as nothing:
        fds = {0: nothing.fileno(), 1: out.fileno(), 2: out.fileno(), **{fd: fd for fd in pass_fds}}
        image = Image(argv[2], argv[3:], {**os.environ, **(environment or {})}, str(Path.cwd()), fds)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            become(image, supervisor)
    return ForkedProcess(pid)


if __name__ == "__main__":
    processes.start = _start_forked  # type: ignore[assignment] # all that the supervisor asks of a process is there
    from rljob_cli.main import main

    main(sys.argv[1:])
