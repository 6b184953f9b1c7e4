"""Infrastructure of a local run: control Redis, storage units, coordinator, preloaded parent.

Starts them, notices their ends, and gives facts about them; whether one is started again is decided by `core`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from rljob_api.process_stat import is_stopped
from rljob_operator.core import ProcessFact
from rljob_operator.core.wording import last_line
from rljob_operator.local.processes import stop

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

    def __init__(self, *, ended: Callable[[str], None], last_words: Callable[[str], str]) -> None:
        self._ended = ended
        self._last_words = last_words
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

    def process(self, name: str) -> asyncio.subprocess.Process:
        """The process that has this name now."""
        return self._members[name].process

    def is_alive(self, name: str) -> bool:
        """Whether it runs."""
        member = self._members.get(name)
        return member is not None and member.process.returncode is None

    def is_stopped(self, name: str) -> bool:
        """Whether it is there and does nothing (SIGSTOP)."""
        return self.is_alive(name) and is_stopped(self.process(name).pid)

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
            last_words="" if code is None else last_line(self._last_words(name)),
        )
