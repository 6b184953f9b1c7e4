"""Groups in work: tickets to prompts to the engine to samples, then to scores and to the rows of whole groups.

Used by the rollout loop from its own thread; generation runs in the engine's event loop, scoring in threads. A sample
counts as in flight until the engine says that it has ended: a slow one holds only its own place, and a score holds
none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from rljob_workers.engines.base import Engine
from rljob_workers.rollout.admission import PromptedTicket
from rljob_workers.rollout.engine_access import RankEngine
from rljob_workers.rollout.engine_calls import EngineCalls
from rljob_workers.rollout.group_rows import GeneratedGroup
from rljob_workers.rollout.sampling import GenerateConfig
from rljob_workers.rollout.scoring_stage import Outcome, ScoreStage
from rljob_workers.rollout.trajectory import Trajectory
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.transfer_queue.types import Ticket


class GroupMaker(Protocol):
    """Generates the groups of tickets: `GenerateStage`, or a user's function (`function_stage`)."""

    async def run(self, tickets: Sequence[PromptedTicket], calls: EngineCalls) -> list[GeneratedGroup]:
        """All samples of all tickets. Raises EngineError (nothing of it counts)."""
        ...

    def close(self) -> None:
        """No ticket comes any more."""
        ...


class GenerateStage:
    """Generates the groups of tickets, each sample in a single turn."""

    def __init__(self, config: GenerateConfig, engine: Engine) -> None:
        """The parts come from their factories; nothing is opened here."""
        self._config = config
        self._engine = engine

    async def run(self, tickets: Sequence[PromptedTicket], calls: EngineCalls) -> list[GeneratedGroup]:
        """All samples of all tickets, in one request.

        With greedy answers where the job has them, which are prompts of one sample beside the others.
        Raises EngineError (nothing of it counts). Prompts leave room for a response: others are passed over before.
        """
        params = [self._config.params_of(each) for each in tickets]
        ids = [each.prompt.token_ids for each in tickets]
        if self._config.draws_greedy:
            params += [self._config.greedy_of(each) for each in tickets]
            ids += ids
        samples = iter(await calls.watch(calls.samples(self._engine, ids, params)))
        made = [
            tuple(Trajectory.of_sample(prompt, sample) for sample in islice(samples, one.num_samples))
            for prompt, one in zip(ids, params, strict=True)
        ]
        count = len(tickets)
        greedy = made[count:] or [()] * count
        return [
            GeneratedGroup(each.ticket, each.prompt, samples, *of_greedy)
            for each, samples, of_greedy in zip(tickets, made[:count], greedy, strict=True)
        ]

    def close(self) -> None:
        """Nothing: the engine is its rank's."""


SCORING_THREADS = 128
"""Scores that are waited for at once; most of a slow reward is waiting, also for its next try."""


Outcomes = list[Outcome]
"""Of each group what became of it."""


class Ended(NamedTuple):
    """Tickets whose work is over: what became of them, or what went wrong with all of them."""

    tickets: list[Ticket]
    outcome: Future[Outcomes]


@dataclass(slots=True)
class _Request:
    """Tickets that are generated together."""

    tickets: list[PromptedTicket]
    in_flight: int
    """Samples that the engine has, or will be sent at once. Changed in the engine's event loop alone."""


class GroupsInWork:
    """Everything between a claimed ticket and its rows.

    work.begin(tickets)
    for tickets, outcome in work.collect():
        groups = outcome.result()
    """

    def __init__(
        self,
        engine: RankEngine,
        generate: GroupMaker,
        score: ScoreStage,
        timeline: Timeline,
        *,
        wake: Callable[[], None],
        stall_seconds: float,
    ) -> None:
        """`wake` is called from other threads whenever a place is free, or work has ended.

        An engine that makes no token for more than `stall_seconds` fails all that it has.
        """
        self._engine = engine
        self._generate = generate
        self._score = score
        self._timeline = timeline
        self._wake = wake
        self._limit = stall_seconds
        self._scorers = ThreadPoolExecutor(SCORING_THREADS, thread_name_prefix="score")
        self._running: dict[Future[Outcomes], _Request] = {}

    @property
    def samples_in_flight(self) -> int:
        """Samples that the engine has, or will be sent at once."""
        return sum(request.in_flight for request in self._running.values())

    @property
    def tickets(self) -> list[Ticket]:
        """All that are generated or scored."""
        return [each.ticket for request in self._running.values() for each in request.tickets]

    def begin(self, tickets: Sequence[PromptedTicket], samples_per_ticket: int) -> None:
        """Starts the work on tickets that are generated together."""
        request = _Request(list(tickets), len(tickets) * samples_per_ticket)
        future = self._engine.begin(self._work(request))
        self._running[future] = request
        future.add_done_callback(lambda _: self._wake())

    def collect(self) -> list[Ended]:
        """What has ended since the last call."""
        done = [future for future in self._running if future.done()]
        return [Ended([each.ticket for each in self._running.pop(future).tickets], future) for future in done]

    def close(self) -> None:
        """Gives up all work. Scores that are waited for are not: their threads end with the process."""
        for future in self._running:
            future.cancel()
        self._generate.close()
        self._scorers.shutdown(wait=False, cancel_futures=True)

    async def _work(self, request: _Request) -> Outcomes:
        first = request.tickets[0].ticket
        try:
            with self._timeline.span("generate", row=2 + first.group, r=first.rollout_id, groups=len(request.tickets)):
                groups = await self._generated(request)
        finally:
            request.in_flight = 0
        return await asyncio.get_running_loop().run_in_executor(self._scorers, self._score.run, groups)

    async def _generated(self, request: _Request) -> list[GeneratedGroup]:
        """Raises EngineStalled when the engine has been stalled for too long."""

        def moved(num_samples: int) -> None:
            request.in_flight += num_samples
            if num_samples < 0:
                self._wake()

        calls = EngineCalls(
            self._engine.progress,
            [each.ticket for each in request.tickets],
            stall_seconds=self._limit,
            moved=moved,
            carried=[sum(len(sample.output_ids) for sample in each.carried) for each in request.tickets],
        )
        return await self._generate.run(request.tickets, calls)
