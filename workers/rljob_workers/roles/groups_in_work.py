"""Groups in work: each generated in the engine's event loop and then scored in a thread.

Used by the rollout loop from its own thread. A sample counts as in flight until the engine has made it: a slow one
holds only its own place, and a score holds none.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from rljob_workers.engines.errors import EngineStandsStill
from rljob_workers.roles.event_loop import EventLoopThread, watched
from rljob_workers.roles.headway import Headway
from rljob_workers.roles.stages.generate import GeneratedGroup, GenerateStage, Listener
from rljob_workers.roles.stages.score import ScoreStage, Unscored
from rljob_workers.roles.standstill import Standstill
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.transfer_queue.types import GroupRows, Ticket

SCORING_THREADS = 32
"""Scores that are waited for at once; most of a slow reward is waiting."""

LOOKS_SECONDS = 1.0
"""How often an engine that stands still is looked at."""

FROZEN_SECONDS = 10.0
"""A look that comes so late was not made by a process that could have heard a token: that time does not count."""


Outcomes = list[GroupRows | Unscored]
"""Of each group its rows, or why it has none."""


class Ended(NamedTuple):
    """Tickets whose work is over: what became of them, or what went wrong with all of them."""

    tickets: list[Ticket]
    outcome: Future[Outcomes]


class GroupsInWork:
    """Everything between a claimed ticket and its rows.

    work.begin(tickets)
    for tickets, outcome in work.collect():
        groups = outcome.result()
    """

    def __init__(
        self,
        events: EventLoopThread,
        generate: GenerateStage,
        score: ScoreStage,
        standstill: Standstill,
        headway: Headway,
        timeline: Timeline,
        *,
        wake: Callable[[], None],
        standstill_seconds: float,
    ) -> None:
        """`wake` is called from other threads whenever there is news: a place is free, or work has ended."""
        self._events = events
        self._generate = generate
        self._score = score
        self._standstill = standstill
        self._headway = headway
        self._timeline = timeline
        self._wake = wake
        self._limit = standstill_seconds
        self._scorers = ThreadPoolExecutor(SCORING_THREADS, thread_name_prefix="score")
        self._flying = _Count()
        self._running: dict[Future[Outcomes], list[Ticket]] = {}

    @property
    def samples_in_flight(self) -> int:
        """Samples that the engine has, or will be sent at once."""
        return self._flying.value

    @property
    def headway(self) -> int:
        """Tokens until now that brought the job forward."""
        return self._headway.tokens

    @property
    def still_seconds(self) -> float:
        """For which the engine has made no token of what it has."""
        return self._standstill.seconds()

    @property
    def tickets(self) -> list[Ticket]:
        """All that are generated or scored."""
        return [ticket for tickets in self._running.values() for ticket in tickets]

    def begin(self, tickets: Sequence[Ticket], samples_per_ticket: int) -> None:
        """Starts the work on tickets that are generated together."""
        flight = _Flight(self._flying, len(tickets) * samples_per_ticket, self._wake)
        future = self._events.begin(self._work(tickets, flight))
        self._running[future] = list(tickets)
        future.add_done_callback(lambda _: self._wake())

    def engine_was_ended(self) -> None:
        """What the engine had is lost with it, and fails by itself; its next life has all its time."""
        self._standstill.progress()

    def collect(self) -> list[Ended]:
        """What has ended since the last call."""
        done = [future for future in self._running if future.done()]
        return [Ended(self._running.pop(future), future) for future in done]

    def close(self) -> None:
        """Gives up all work. Scores that are waited for are not: their threads end with the process."""
        for future in self._running:
            future.cancel()
        self._scorers.shutdown(wait=False, cancel_futures=True)

    async def _work(self, tickets: Sequence[Ticket], flight: _Flight) -> Outcomes:
        try:
            name = {"row": 2 + tickets[0].group, "r": tickets[0].rollout_id, "groups": len(tickets)}
            with self._timeline.span("generate", **name):
                groups = await self._watched(tickets, flight)
        finally:
            flight.land_all()
        return await asyncio.get_running_loop().run_in_executor(self._scorers, self._score.run, groups)

    async def _watched(self, tickets: Sequence[Ticket], flight: _Flight) -> list[GeneratedGroup]:
        """Generates; given up, by name, when the engine has stood still for too long."""
        headway = self._headway.begin(tickets)

        def on_tokens(num_tokens: int) -> None:
            self._standstill.progress()
            headway(num_tokens)

        looked = time.monotonic()

        def look() -> None:
            nonlocal looked
            late, looked = time.monotonic() - looked > FROZEN_SECONDS, time.monotonic()
            if late:
                self._standstill.progress()
            if (still := self._standstill.seconds()) > self._limit:
                names = ", ".join(f"{ticket.rollout_id}.{ticket.group}" for ticket in tickets)
                raise EngineStandsStill(
                    f"the engine has made no token for {still:.0f} s; it had groups {names}", found_at=looked
                )

        with self._standstill.request():
            work = self._generate.run(tickets, Listener(on_tokens, flight.land))
            return await watched(work, look, every=LOOKS_SECONDS)


class _Count:
    """A number that several threads change."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self, number: int) -> None:
        with self._lock:
            self.value += number


class _Flight:
    """The samples of one piece of work that are in flight."""

    def __init__(self, count: _Count, num_samples: int, wake: Callable[[], None]) -> None:
        self._count = count
        self._left = num_samples
        self._wake = wake
        count.add(num_samples)

    def land(self, num_samples: int) -> None:
        self._left -= num_samples
        self._count.add(-num_samples)
        self._wake()

    def land_all(self) -> None:
        if self._left:
            self.land(self._left)
