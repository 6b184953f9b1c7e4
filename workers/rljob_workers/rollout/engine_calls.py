"""Calls of the engine for tickets that are generated together: watched for a stall, and their tokens counted.

For the stages that generate. The clock of a stall runs while the engine has a request, and not while a tool runs.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from copy import copy
from typing import Any, TypeVar

from rljob_workers.engines.base import (
    Drawn,
    Ended,
    Engine,
    EngineEmptied,
    EngineStalled,
    GivenUp,
    Grown,
    Sample,
    SamplingParams,
    Shown,
)
from rljob_workers.rollout.engine_access import EngineProgress, watched
from rljob_workers.transfer_queue.types import Ticket

_Answer = TypeVar("_Answer")


CHECK_SECONDS = 1.0
"""How often requests check whether their engine is stalled, and functions whether they take too long."""


class EngineCalls:
    """Of one request; used in the engine's event loop alone."""

    def __init__(
        self,
        progress: EngineProgress,
        tickets: Sequence[Ticket],
        *,
        stall_seconds: float,
        moved: Callable[[int], None],
        carried: Sequence[int] | None = None,
    ) -> None:
        """`moved(n)`: n more samples are in flight at the engine, or fewer. `carried`: as `EngineProgress.counted`."""
        self._progress = progress
        self._tickets = tickets
        self._limit = stall_seconds
        self.moved = moved
        self.made = progress.counted(tickets, carried)
        """Counts tokens of the engine."""

    def without_places(self) -> EngineCalls:
        """Calls of the same tickets, for a caller that counts its samples in flight itself."""
        calls = copy(self)
        calls.moved = lambda _: None
        return calls

    async def events(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        shown: Shown = Shown.ENDS,
    ) -> AsyncGenerator[Grown | Ended | GivenUp]:
        """`Engine.generate`, its tokens counted. Each sample leaves its place once it has ended.

        Raises EngineEmptied at the end where samples were given up.
        """
        num_given_up = 0
        async with aclosing(engine.generate(prompts, params, shown)) as events:
            async for event in events:
                match event:
                    case Drawn(num_tokens):
                        self.made(num_tokens)
                        continue
                    case Ended(samples):
                        self.moved(-len(samples))
                    case GivenUp(samples):
                        self.moved(-len(samples))
                        num_given_up += len(samples)
                yield event
        if num_given_up:
            raise EngineEmptied("the samples were aborted at the engine: they are no answers")

    async def samples(
        self, engine: Engine, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> list[Sample]:
        """All samples, in the order of prompts, once the last has ended."""
        found: dict[int, Sample] = {}
        async with aclosing(self.events(engine, prompts, params)) as events:
            async for event in events:
                found |= event.samples
        return [found[number] for number in range(len(found))]

    async def watch(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        """The answer of the engine. Raises EngineStalled when the engine has been stalled for too long."""
        with self._progress.expecting():
            return await watched(work, self._check, every=CHECK_SECONDS)

    def _check(self) -> None:
        if (stalled := self._progress.poll()) > self._limit:
            names = ", ".join(f"{ticket.rollout_id}.{ticket.group}" for ticket in self._tickets)
            what = f"groups {names}" if names else "a sample of an evaluation"
            raise EngineStalled(
                f"the engine has made no token for {stalled:.0f} s; it had {what}",
                found_at=time.monotonic(),
            )
