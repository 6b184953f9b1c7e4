"""The watchdog: an infrastructure process that is there but does not answer is killed, and so restarted by its name.

A stopped or wedged server ends nothing and reports nothing: without this everything would wait for it without a name.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rljob_operator.local.infrastructure import Infrastructure
from rljob_operator.local.pods import Pods

PROBE_INTERVAL_SECONDS = 2.0
SILENCE_LIMIT_SECONDS = 15.0
"""An answer of these servers takes a millisecond, on a slow disk that is being synced some seconds."""
LONGEST_LOOK_SECONDS = 2 * PROBE_INTERVAL_SECONDS
"""More of the time between two looks is nobody's silence: this process was held up itself, as by Ctrl-Z."""
START_LIMIT_SECONDS = 120.0
"""To the first answer, for imports: the parent's take 4 s with byte code, 12 s without, more where memory is short."""


@dataclass(frozen=True, slots=True)
class RedisProbe:
    """Where a Redis listens."""

    name: str
    socket: Path
    password: str


@dataclass(slots=True)
class _Life:
    """A process, how long it may be silent, and how long it has been."""

    pid: int
    limit_seconds: float
    silent_seconds: float = 0.0


class Watchdog:
    """Asks every Redis for a PONG; is told when the coordinator has answered."""

    def __init__(
        self,
        infrastructure: Infrastructure,
        pods: Pods,
        probes: tuple[RedisProbe, ...],
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._infrastructure = infrastructure
        self._pods = pods
        self._probes = probes
        self._tell = tell
        self._clock = clock
        self._known: dict[str, _Life] = {}
        self._looked_at = clock()

    def heard(self, name: str) -> None:
        """This process has answered just now."""
        self._known[name] = _Life(self._infrastructure.process(name).pid, SILENCE_LIMIT_SECONDS)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(PROBE_INTERVAL_SECONDS)

    async def look(self) -> None:
        """Asks all of them, and kills who has been silent for too long."""
        await asyncio.gather(*(self._probe(probe) for probe in self._probes))
        now = self._clock()
        passed = min(now - self._looked_at, LONGEST_LOOK_SECONDS)
        self._looked_at = now
        for name in (*(probe.name for probe in self._probes), "coordinator"):
            self._judge(name, passed)
        self._judge_parent()

    async def _probe(self, probe: RedisProbe) -> None:
        if not self._infrastructure.is_alive(probe.name):
            return
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(PROBE_INTERVAL_SECONDS):
                await _ping(probe)
            self.heard(probe.name)

    def _judge(self, name: str, passed: float) -> None:
        """A process that was started anew has the time of a start anew."""
        if not self._infrastructure.is_alive(name):
            return
        pid, life = self._infrastructure.process(name).pid, self._known.get(name)
        if life is None or life.pid != pid:
            self._known[name] = _Life(pid, START_LIMIT_SECONDS)
            return
        life.silent_seconds += passed
        if life.silent_seconds > life.limit_seconds:
            self._kill(name, f"{name} (process {pid}) has not answered in {life.limit_seconds:.0f} s; it is killed")

    def _judge_parent(self) -> None:
        if not self._infrastructure.is_alive("parent"):
            return
        pods, now = self._pods, time.time()
        if pods.parent_ready_at is None:
            since, limit = pods.parent_started_at, START_LIMIT_SECONDS
        else:
            since, limit = max(pods.oldest_pending() or now, pods.parent_ready_at), SILENCE_LIMIT_SECONDS
        if now - since > limit:
            self._kill("parent", f"the preloaded parent has not answered in {limit:.0f} s; it is killed")

    def _kill(self, name: str, message: str) -> None:
        self._tell(message)
        with suppress(ProcessLookupError):
            self._infrastructure.process(name).kill()


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
