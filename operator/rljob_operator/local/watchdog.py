"""The watchdog: an infrastructure process that is there but does not answer is killed, and so restarted by its name.

A stopped or wedged server ends nothing and reports nothing: without this everything would wait for it without a name.
"""

import asyncio
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass

from rljob_api.machine.attended_time import AttendedClock
from rljob_api.machine.process_stat import is_stopped, progress_of
from rljob_operator.core import Reason
from rljob_operator.local.journal import Journal
from rljob_operator.local.pods import Pods
from rljob_operator.local.processes import Infrastructure
from rljob_operator.local.services import COORDINATOR, PARENT, RedisProbe

PROBE_INTERVAL_SECONDS = 2.0
SILENCE_LIMIT_SECONDS = 15.0
"""An answer of these servers takes a millisecond, on a slow disk that is being synced some seconds."""
LONGEST_PAUSE_SECONDS = 2 * PROBE_INTERVAL_SECONDS
"""Time beyond this between two checks counts as no process's silence: this one was held up itself, as by Ctrl-Z."""
START_LIMIT_SECONDS = 120.0
"""Least time for a start without an answer and without progress. Imports take seconds, or many minutes from a network
disk or where memory is short: as long as they read or compute, the start goes on."""


@dataclass(slots=True)
class _Silence:
    """What an answer is awaited to, how long it may take, and since when."""

    question: Hashable
    """A server's pid: it is asked again and again. Of the parent also what it has to do."""
    limit_seconds: float
    since: float
    """In attended seconds."""
    progress: tuple[int, ...] | None = None
    """Of a start: how far the process had come; None where only an answer counts."""


class Watchdog:
    """Asks every Redis for a PONG; the transport reports answers of the coordinator."""

    def __init__(
        self,
        infrastructure: Infrastructure,
        pods: Pods,
        probes: tuple[RedisProbe, ...],
        journal: Journal,
        stopped_limit_seconds: float,
        start_limit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stopped_limit_seconds` (heartbeatTimeoutSeconds) is for one that is stopped: that is no slow answer.

        `start_limit_seconds` (engine.startupTimeoutSeconds) is for starts, where it is longer than their own.
        """
        self._stopped_limit = stopped_limit_seconds
        self._start_limit = max(START_LIMIT_SECONDS, start_limit_seconds)
        self._infrastructure = infrastructure
        self._pods = pods
        self._probes = probes
        self._journal = journal
        self._known: dict[str, _Silence] = {}
        self._attended = AttendedClock(LONGEST_PAUSE_SECONDS, clock)

    def answered(self, name: str) -> None:
        """This process has answered just now."""
        process = self._infrastructure.running(name)
        if process is not None:
            self._known[name] = _Silence(process.pid, SILENCE_LIMIT_SECONDS, self._attended.tick())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(PROBE_INTERVAL_SECONDS)

    async def check(self) -> None:
        """Probes all of them, and kills those that have been silent for too long."""
        await asyncio.gather(*(self._probe(probe) for probe in self._probes))
        self._attended.tick()
        for name in (*(probe.name for probe in self._probes), COORDINATOR, PARENT):
            process = self._infrastructure.running(name)
            if process is not None:
                self._judge_parent(process) if name == PARENT else self._judge(name, process)

    async def _probe(self, probe: RedisProbe) -> None:
        if self._infrastructure.running(probe.name) is None:
            return
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(PROBE_INTERVAL_SECONDS):
                await _ping(probe)
            self.answered(probe.name)

    def _judge(self, name: str, process: Process) -> None:
        """A restarted coordinator has the time of a start again: it has much to import."""
        if silence := self._silence(name, process, process.pid, starts=name == COORDINATOR):
            self._kill(process, f"{name} (process {process.pid}) has not answered in {silence}; it is killed")

    def _judge_parent(self, process: Process) -> None:
        """It owes its start, and then every pod that it was ordered to begin."""
        started, pending = self._pods.parent_ready_at, self._pods.oldest_pending()
        if started is not None and pending is None:
            self._known.pop(PARENT, None)
            return
        question = (process.pid, started, pending if started else None)
        if silence := self._silence(PARENT, process, question, starts=started is None):
            self._kill(process, f"the preloaded parent has not answered in {silence}; it is killed")

    def _silence(self, name: str, process: Process, question: Hashable, *, starts: bool) -> str | None:
        """Describes the limit where it is exceeded. A new question has its whole limit, a start that goes on, too."""
        silence, now = self._known.get(name), self._attended.seconds
        if silence is None or silence.question != question:
            limit = self._start_limit if starts else SILENCE_LIMIT_SECONDS
            progress = _progress(process) if starts else None
            self._known[name] = _Silence(question, limit, now, progress=progress)
            return None
        if silence.progress is not None and silence.progress != (progress := _progress(process)):
            silence.progress, silence.since = progress, now
        seconds = now - silence.since
        if seconds > silence.limit_seconds:
            return f"{silence.limit_seconds:.0f} s" + (" and makes no progress" if silence.progress is not None else "")
        if seconds > self._stopped_limit and is_stopped(process.pid):
            return f"{seconds:.0f} s and is stopped (SIGSTOP)"
        return None

    def _kill(self, process: Process, message: str) -> None:
        self._journal.note(time.time(), Reason.HANG.value, message)
        with suppress(ProcessLookupError):
            process.kill()


def _progress(process: Process) -> tuple[int, ...]:
    return progress_of(process.pid) or ()


async def _ping(probe: RedisProbe) -> None:
    """Any reply will do, also `LOADING`: it is the silence that counts."""
    reader, writer = await asyncio.open_unix_connection(str(probe.socket))
    try:
        password = probe.password.encode()
        writer.write(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n*1\r\n$4\r\nPING\r\n" % (len(password), password))
        await writer.drain()
        for _ in range(2):
            await reader.readuntil(b"\n")
    finally:
        writer.close()
