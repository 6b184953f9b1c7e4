"""Processes of this machine with a parent-death signal, and the infrastructure of a run made of them.

A child dies with the supervisor and does not receive the terminal's Ctrl-C. `Infrastructure` starts Redis, coordinator
and preloaded parent, notices their ends and reports facts; `core` decides about restarts.
"""

import asyncio
import ctypes
import os
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rljob_api.machine.process_stat import STATE, is_stopped, stat_of
from rljob_operator.core import ProcessFact
from rljob_operator.core.reasons import last_line

POLL_SECONDS = 0.2
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
    """SIGTERM, then after `patience` seconds SIGKILL; at once to one that is stopped, which cannot handle SIGTERM."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    deadline = time.monotonic() + patience
    while process.returncode is None and time.monotonic() < deadline and not is_stopped(process.pid):
        with suppress(TimeoutError):
            async with asyncio.timeout(min(POLL_SECONDS, patience)):
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


Launch = Callable[[], Awaitable[asyncio.subprocess.Process]]


REMEMBERED_ENDS = 32
"""More than any policy asks for."""


@dataclass(slots=True)
class _Member:
    launch: Launch
    process: asyncio.subprocess.Process
    ends: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_ENDS))
    num_restarts: int = 0
    watch: asyncio.Task[None] | None = None


class Infrastructure:
    """The processes by name, in the order of their start."""

    def __init__(self, *, ended: Callable[[str], None], log_tail: Callable[[str], str]) -> None:
        self._ended = ended
        self._log_tail = log_tail
        self._members: dict[str, _Member] = {}

    async def start(self, services: Mapping[str, Launch]) -> None:
        """Starts these, in order, without waiting for what they do."""
        for name, launch in services.items():
            member = _Member(launch, await launch())
            self._members[name] = member
            member.watch = asyncio.create_task(self._watch(name, member), name=f"watch {name}")

    async def restart(self, name: str) -> None:
        """Starts a dead one again; a living one is left alone."""
        member = self._members[name]
        if member.process.returncode is None:
            return
        member.process = await member.launch()
        member.num_restarts += 1
        member.watch = asyncio.create_task(self._watch(name, member), name=f"watch {name}")

    def running(self, name: str) -> asyncio.subprocess.Process | None:
        """The process that has this name now; None where it has ended or was never started."""
        member = self._members.get(name)
        return member.process if member is not None and member.process.returncode is None else None

    def facts(self) -> tuple[ProcessFact, ...]:
        """What the core may know of them."""
        return tuple(self._fact(name, member) for name, member in self._members.items())

    async def stop(self, name: str, *, patience: float) -> None:
        """Ends one for good."""
        member = self._members.get(name)
        if member is None:
            return
        if member.watch is not None:
            member.watch.cancel()
            with suppress(asyncio.CancelledError):
                await member.watch
        await stop(member.process, patience=patience)

    async def _watch(self, name: str, member: _Member) -> None:
        await member.process.wait()
        member.ends.append(time.time())
        self._ended(name)

    def _fact(self, name: str, member: _Member) -> ProcessFact:
        code = member.process.returncode
        return ProcessFact(
            name=name,
            pid=member.process.pid,
            alive=code is None,
            exits=tuple(member.ends),
            num_restarts=member.num_restarts,
            stopped=code is None and is_stopped(member.process.pid),
            exit_code=code,
            last_message="" if code is None else last_line(self._log_tail(name)),
        )
