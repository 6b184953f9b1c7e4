"""What is emitted about a job as Events, and what of that is written."""

import asyncio
import time
from typing import Any, cast

from rljob_operator.kube.api import Api
from rljob_operator.kube.errors import refusal
from rljob_operator.kube.events import EMIT_RATE, REPEAT_SECONDS, Events, warning
from rljob_operator.kube.kinds import Resource
from rljob_operator.kube.views import JobKey

Json = dict[str, Any]
KEY = JobKey("team", "job")
RAW = {"metadata": {"uid": "u1"}}


class Server:
    """Takes events; keeps their messages, and the counts that are written later."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.counts: list[int] = []
        self._names: set[str] = set()

    async def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        if (name := body["metadata"]["name"]) in self._names:
            raise refusal("create", 409, "AlreadyExists", name)
        self._names.add(name)
        self.messages.append(body["message"])
        return body

    async def merge(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        self.counts.append(body["count"])
        return body


class Recorded:
    """By one incarnation of the operator."""

    def __init__(self, server: Server | None = None) -> None:
        self.now = 1000.0
        self.server = server or Server()
        self._events = Events(cast(Api, self.server), "me", time.time, lambda: self.now)

    def emit(self, message: str, times: int = 1, once: str = "") -> None:
        async def all_of_them() -> None:
            for _ in range(times):
                await self._events.emit(KEY, RAW, warning("ObjectRefused", message), once)

        asyncio.run(all_of_them())


def test_a_sentence_that_repeats_costs_nothing_until_it_is_written() -> None:
    reported = Recorded()
    reported.emit("refused", times=2 * EMIT_RATE.burst)
    reported.emit("something else")
    assert reported.server.messages == ["refused", "something else"]
    assert reported.server.counts == []
    reported.now += REPEAT_SECONDS
    reported.emit("refused")
    assert reported.server.counts == [2 * EMIT_RATE.burst + 1]


def test_a_job_that_states_ever_more_is_cut_short() -> None:
    reported = Recorded()
    for number in range(EMIT_RATE.burst + 10):
        reported.emit(f"{number}")
    assert len(reported.server.messages) == EMIT_RATE.burst


def test_what_happened_once_is_reported_once_by_all_incarnations_of_the_operator_together() -> None:
    first = Recorded()
    first.emit("epoch 2", once="e2")
    for incarnation in (first, Recorded(first.server)):
        incarnation.emit("epoch 2, in other words", once="e2")
    first.emit("epoch 3", once="e3")
    first.emit("whatever repeats")
    Recorded(first.server).emit("whatever repeats")
    assert first.server.messages == ["epoch 2", "epoch 3", "whatever repeats", "whatever repeats"]


def test_what_the_same_operator_is_given_again_with_its_key_is_no_repetition() -> None:
    """A coordinator that comes back, as after a suspension, has its last events still, and they are received again."""
    reported = Recorded()
    for _ in range(3):
        reported.emit("version 2 was evaluated", once="1/7")
        reported.now += REPEAT_SECONDS
    assert (reported.server.messages, reported.server.counts) == (["version 2 was evaluated"], [])
    reported.emit("version 2 was evaluated", once="1/9")
    assert reported.server.counts == [2], "the same sentence of something else"
