"""Groups in work: tickets to prompts to the engine to samples, then to scores and to the rows of whole groups.

Used by the rollout loop from its own thread; generation runs in the engine's event loop, scoring in threads. A sample
counts as in flight until the engine has made it: a slow one holds only its own place, and a score holds none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import xxhash

from rljob_api.spec import RLJobSpec
from rljob_workers.data.prompts import Prompt
from rljob_workers.engines.base import (
    Engine,
    EngineEmptied,
    EngineStalled,
    FinishReason,
    Generation,
    Sample,
    SamplingParams,
    all_or_none,
)
from rljob_workers.rollout.admission import PromptedTicket
from rljob_workers.rollout.engine_access import RankEngine, watched
from rljob_workers.rollout.group_rows import GeneratedGroup
from rljob_workers.rollout.scoring_stage import ScoreStage, Unscored
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.transfer_queue.types import GroupRows, Ticket


@dataclass(frozen=True, slots=True)
class GenerateConfig:
    """How a group is sampled."""

    job_seed: int
    samples_per_prompt: int
    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    max_tokens: int
    """Positions of the model: prompt and response together."""
    stop_token_ids: tuple[int, ...]
    stop: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: RLJobSpec, max_tokens: int) -> GenerateConfig:
        """Of a job and the positions that its engine has."""
        sampling = spec.rollout.sampling
        return cls(
            job_seed=spec.seed,
            samples_per_prompt=spec.rollout.samples_per_prompt,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_new_tokens=sampling.max_new_tokens,
            max_tokens=max_tokens,
            stop_token_ids=tuple(sampling.stop_token_ids),
            stop=tuple(sampling.stop),
        )


def sampling_seed(job_seed: int, ticket: Ticket) -> int:
    """Seed of the group's first sample; the i-th has seed + i. A function of what names the group and nothing else."""
    name = f"{job_seed}/{ticket.rollout_id}/{ticket.group}/{ticket.attempt}"
    return xxhash.xxh3_64_intdigest(name.encode()) >> 20


class GenerateStage:
    """Generates the groups of tickets."""

    def __init__(self, config: GenerateConfig, engine: Engine) -> None:
        """The parts come from their factories; nothing is opened here."""
        self._config = config
        self._engine = engine

    async def run(
        self, tickets: Sequence[PromptedTicket], on_tokens: Callable[[int], None], on_samples: Callable[[int], None]
    ) -> list[GeneratedGroup]:
        """All samples of all tickets: one request where the engine takes many prompts, else one for each sample.

        Both functions are called in the engine's event loop, with how many more tokens, or samples, are made.
        Raises EngineError (nothing of it counts). Prompts leave room for a response: others are passed over before.
        """
        params = [self._params(each.ticket, each.prompt) for each in tickets]
        ids = [each.prompt.token_ids for each in tickets]
        if self._engine.prompts_per_request is None:
            generations = await self._engine.generate(ids, params, progress=on_tokens)
            on_samples(sum(one.num_samples for one in params))
        else:
            generations = await self._one_by_one(ids, params, on_tokens, on_samples)
        if any(sample.finish_reason is FinishReason.ABORT for one in generations for sample in one.samples):
            raise EngineEmptied("the samples were aborted at the engine: they are no answers")
        pairs = zip(tickets, generations, strict=True)
        return [GeneratedGroup(each.ticket, each.prompt, generation) for each, generation in pairs]

    async def _one_by_one(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        on_tokens: Callable[[int], None],
        on_samples: Callable[[int], None],
    ) -> list[Generation]:
        """Every sample on its own, so that one that is done makes room at once. The first failure ends the others."""

        async def draw(prompt: Sequence[int], one: SamplingParams) -> Sample:
            (generation,) = await self._engine.generate([prompt], [one], progress=on_tokens)
            on_samples(1)
            return generation.samples[0]

        samples = iter(
            await all_or_none(
                draw(prompt, replace(given, num_samples=1, seed=given.seed + index))
                for prompt, given in zip(prompts, params, strict=True)
                for index in range(given.num_samples)
            )
        )
        return [Generation(tuple(islice(samples, given.num_samples))) for given in params]

    def _params(self, ticket: Ticket, prompt: Prompt) -> SamplingParams:
        room = self._config.max_tokens - len(prompt.token_ids)
        assert room > 0, f"prompt {prompt.index} leaves no room for a response"
        return SamplingParams(
            temperature=self._config.temperature,
            top_p=self._config.top_p,
            top_k=self._config.top_k,
            max_new_tokens=min(self._config.max_new_tokens, room),
            stop_token_ids=self._config.stop_token_ids,
            num_samples=self._config.samples_per_prompt,
            seed=sampling_seed(self._config.job_seed, ticket),
            stop=self._config.stop,
        )


SCORING_THREADS = 32
"""Scores that are waited for at once; most of a slow reward is waiting."""


CHECK_SECONDS = 1.0
"""How often requests check whether their engine is stalled."""


Outcomes = list[GroupRows | Unscored]
"""Of each group its rows, or why it has none."""


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
        generate: GenerateStage,
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
        tickets = [each.ticket for each in request.tickets]

        def on_samples(num_samples: int) -> None:
            request.in_flight -= num_samples
            self._wake()

        def check() -> None:
            if (stalled := self._engine.progress.poll()) > self._limit:
                names = ", ".join(f"{ticket.rollout_id}.{ticket.group}" for ticket in tickets)
                raise EngineStalled(
                    f"the engine has made no token for {stalled:.0f} s; it had groups {names}",
                    found_at=time.monotonic(),
                )

        with self._engine.progress.request(tickets) as on_tokens:
            work = self._generate.run(request.tickets, on_tokens, on_samples)
            return await watched(work, check, every=CHECK_SECONDS)
