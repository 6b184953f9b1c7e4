"""The endpoints of what every pod asks all the time: beats, polls of launchers, questions for weights.

Added to the router by `app`. Hundreds of ranks send these many times a second: beats are carried out in batches, and
weights are answered with bytes that were made once. Decides nothing.
"""

from __future__ import annotations

import time
from enum import Enum
from functools import partial

from pydantic import Field

from rljob_api.base import WireModel
from rljob_api.names import Lineage, Stream, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_api.wire.launchers import LauncherAnswer, LauncherPoll
from rljob_api.wire.ranks import Beat
from rljob_workers.dcs.coordinator.context import Topic
from rljob_workers.dcs.coordinator.router import NOTHING, Answer, Request, Router, as_json
from rljob_workers.dcs.coordinator.serial_executor import Beats, SerialExecutor

LONGEST_WAIT_SECONDS = 30.0


class _Asked(WireModel):
    """The question for weights newer than the one that is held."""

    stream: Stream
    lineage: Lineage = Lineage(-1)
    version: WeightVersion = WeightVersion(-1)
    wait: float = Field(default=0.0, ge=0, le=LONGEST_WAIT_SECONDS)


class _News(Enum):
    """A poll that is to be noted before it can be answered."""

    NEWS = "news"


class HotRoutes:
    """The endpoints, and the beats that wait to be carried out."""

    def __init__(self, executor: SerialExecutor) -> None:
        self._executor = executor
        self._coordinator = executor.coordinator
        self._beats = Beats(executor, executor.coordinator.beats)

    def add_to(self, router: Router) -> None:
        """Adds them."""
        router.add("POST", "/v1/ranks/beat", self._beat)
        router.add("POST", "/v1/launchers/{launcher}/poll", self._poll)
        router.add("GET", "/v1/weights/{stream}", self._weights)

    async def _beat(self, request: Request) -> Answer:
        beat = await request.stated(Beat)
        self._coordinator.ranks.receive_beat(beat)
        return as_json(await self._executor.when_open(partial(self._beats.answer, beat)))

    async def _poll(self, request: Request) -> Answer:
        launcher, poll = request.name, await request.stated(LauncherPoll)
        launchers = self._coordinator.launchers
        launchers.receive_poll(launcher, poll)
        if not self._coordinator.gate.is_open:
            await self._executor.wait_open()  # a closed server is not asked again and again
        answer = await self._await_order(launcher, poll)
        launchers.note_answered(launcher)
        return as_json(answer)

    async def _await_order(self, launcher: str, poll: LauncherPoll) -> LauncherAnswer:
        """An order other than the carried one, or what there is when the wait is over."""
        launchers, executor, carried = self._coordinator.launchers, self._executor, poll.carried
        until = time.monotonic() + poll.wait_seconds

        def reading() -> LauncherAnswer | _News | None:
            self._coordinator.gate.require_open()
            if launchers.is_news(launcher, carried):
                return _News.NEWS
            answer = launchers.answer(launcher, carried)
            return answer if answer.order != carried and answer.order is not None else None

        while True:
            left = until - time.monotonic()
            key = executor.read(partial(launchers.pod_of, launcher))
            answer: LauncherAnswer | _News | None = await executor.await_answer(Topic.ORDERS, reading, left, key)
            if not isinstance(answer, _News):
                return executor.read(partial(launchers.answer, launcher, carried)) if answer is None else answer
            await executor.do_when_open(partial(launchers.note, launcher, carried))

    async def _weights(self, request: Request) -> Answer:
        asked = request.asked(_Asked, stream=request.name)
        held = WeightId(lineage=asked.lineage, version=asked.version)
        newer = partial(self._coordinator.weights.newer, asked.stream, held)
        offer = await self._executor.await_answer(Topic.WEIGHTS, newer, asked.wait)
        return NOTHING if offer is None else Answer(offer)
