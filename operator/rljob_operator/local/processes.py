"""Processes of this machine: started with a parent-death signal, in a session of their own, with a log file.

A child dies with the supervisor, however that dies, and does not get the terminal's Ctrl-C: the supervisor drains.
"""

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rljob_api.process_stat import STATE, is_stopped, stat_of

LOOK_SECONDS = 0.2
"""How soon it is noticed that a process which shall end was stopped."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
"""Loaded before any fork: a child between fork and exec must not load libraries."""


async def start(
    argv: Sequence[str], log: Path, *, pass_fds: Sequence[int] = (), environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Starts a process that cannot outlive this one. Call it from the main thread: the signal follows the thread."""
    supervisor = os.getpid()

    def die_with_supervisor() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # it died before the signal was armed
            os._exit(1)

    with log.open("ab") as out:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=tuple(pass_fds),
            env=None if environment is None else {**os.environ, **environment},
            start_new_session=True,
            preexec_fn=die_with_supervisor,
        )


async def stop(process: asyncio.subprocess.Process, *, patience: float) -> None:
    """SIGTERM, then after `patience` seconds SIGKILL; at once to one that is stopped, which ends at no wish."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    deadline = time.monotonic() + patience
    while process.returncode is None and time.monotonic() < deadline and not is_stopped(process.pid):
        with suppress(TimeoutError):
            async with asyncio.timeout(min(LOOK_SECONDS, patience)):
                await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def terminate(pid: int) -> None:
    """SIGTERM; a process that is gone already is fine."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def kill(pid: int) -> None:
    """SIGKILL; a process that is gone already is fine."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Whether the process is there and not only its exit code."""
    stat = stat_of(pid)
    return stat is not None and stat[STATE] not in ("Z", "X")
