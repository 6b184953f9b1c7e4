"""Calls of the engine for tickets that are generated together: watched for a stall, and their tokens counted.

For the stages that generate. The clock of a stall runs while the engine has a request, and not while a tool runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from rljob_workers.engines.base import (
    Engine,
    EngineEmptied,
    EngineStalled,
    FinishReason,
    Generation,
    SampleSoFar,
    SamplingParams,
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

    async def generate(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        so_far: Sequence[Sequence[SampleSoFar]] | None = None,
    ) -> list[Generation]:
        """`Engine.generate` in one request: each sample leaves its place once it has ended, while others go on."""
        left = sum(one.num_samples for one in params)

        def ended(num_samples: int) -> None:
            nonlocal left
            left -= num_samples
            self.moved(-num_samples)

        generations = await engine.generate(prompts, params, progress=self.made, ended=ended, so_far=so_far)
        self.moved(-left)
        return generations

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


def require_ended(generations: Iterable[Generation]) -> None:
    """Raises EngineEmptied where a sample was aborted."""
    if any(sample.finish_reason is FinishReason.ABORT for generation in generations for sample in generation.samples):
        raise EngineEmptied("the samples were aborted at the engine: they are no answers")
