"""Beats of many ranks, carried out together: one turn of the thread and one call on the control Redis for all.

Called by `hot_routes`, in the event loop. A beat that comes alone is carried out at once; those that come meanwhile are
the next ones, so that no beat waits for others to come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from rljob_api.spec import RestartPolicySpec
from rljob_api.wire.ranks import Beat, BeatAnswer
from rljob_workers.dcs.coordinator.refusals import Refused

BEAT_SHARE = 1 / 6
"""Of the time after which a silent rank hangs: five beats may go astray."""
BEAT_BOUNDS_SECONDS = (0.5, 5.0)
"""Hundreds of ranks beat; and status and metrics are as old as the last beat."""

T = TypeVar("T")

Judged = BeatAnswer | Refused
CarryOut = Callable[[Sequence[Beat]], Sequence[Judged]]


def beat_interval_seconds(policy: RestartPolicySpec) -> float:
    """How often ranks beat."""
    low, high = BEAT_BOUNDS_SECONDS
    return min(max(policy.heartbeat_timeout_seconds * BEAT_SHARE, low), high)


class Thread(Protocol):
    """Where work is done one after another."""

    async def do(self, work: Callable[[], T]) -> T:
        """Carries out `work`; raises what it raises."""
        ...


class Beats:
    """The beats that wait, and those that are carried out now."""

    def __init__(self, thread: Thread, carry_out: CarryOut) -> None:
        """`carry_out` answers each of some beats, in their order; it raises where none of them could be carried out."""
        self._thread = thread
        self._carry_out = carry_out
        self._waiting: list[tuple[Beat, asyncio.Future[BeatAnswer]]] = []
        self._work: asyncio.Task[None] | None = None

    async def answer(self, beat: Beat) -> BeatAnswer:
        """Once it was carried out. Raises Refused for a life that is over, and where the control Redis is not open."""
        answered: asyncio.Future[BeatAnswer] = asyncio.get_running_loop().create_future()
        self._waiting.append((beat, answered))
        if self._work is None:
            self._work = asyncio.create_task(self._carry_out_all())
        return await answered

    async def _carry_out_all(self) -> None:
        try:
            while self._waiting:
                await self._carry_out_waiting()
        finally:
            self._work = None

    async def _carry_out_waiting(self) -> None:
        now, self._waiting = self._waiting, []
        try:
            answers = await self._thread.do(partial(self._carry_out, [beat for beat, _ in now]))
        except Exception as error:  # the requests raise it, each of them
            for _, answered in now:
                _fail(answered, error)
            return
        for (_, answered), answer in zip(now, answers, strict=True):
            if isinstance(answer, Refused):
                _fail(answered, answer)
            elif not answered.done():
                answered.set_result(answer)


def _fail(answered: asyncio.Future[BeatAnswer], error: Exception) -> None:
    if not answered.done():  # else its request was given up
        answered.set_exception(error)
