"""A coordinator that wants the operator no good, on real sockets: what is read of it, what is made of it, who suffers.

No test here asserts on time. Bytes, memory and what comes of others are asserted.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from rljob_operator.cluster.coordinators import LEAST_BYTES, LISTENING, CoordinatorContact, JobCoordinators
from rljob_operator.coordinator_client.cluster_transport import ServiceTransport
from rljob_operator.core import NoContact, Reason
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.responses import FRAME_BYTES, MeteredConnector
from rljob_operator.kube.views import JobKey
from rljob_operator.kube.work_queue import Urgency
from tests.bench.operator_scale.hostile import WAYS, Hostile
from tests.bench.operator_scale.measured import memory_mib

NUM_PROCESSES = 10
BUFFERS_BYTES = 8 * 1024 * 1024
"""Of the kernel, on both ends: what was sent and never read."""
MORE_MIB = 50
IMPATIENT_SECONDS = 1.0
"""For an answer that never comes; it is in the sentence."""
PATIENT_SECONDS = 60.0
"""However slow the machine is, an answer that comes is judged by what it is."""
UNDERSTOOD = "telling"
REFUSED = {
    "sized": "the answer is longer than 1089536 bytes",
    "chunked": "the answer is longer than 1089536 bytes",
    "extended": "the answer is longer than 1089536 bytes",
    "interim": "more came than the answer to one question",
    "pipelined": "more came than the answer to one question",
    "headers": "GET http://headers-coordinator.ns.svc:8080/v1/status: ",
    "packed": "the answer is packed, which was not asked for",
    "elsewhere": "307, a redirection, which is not followed",
    "dripping": "no answer within 1 s",
    "many-wrong": "the coordinator's CoordinatorStatus is not understood: failures[0].id: Field required",
    "many-wrong-rows": "queue.rowsReady: Value error, 60000 names, at most 1000 are taken",
    "deep": "the coordinator's CoordinatorStatus is not understood: : Invalid JSON: recursion limit exceeded",
    "no-number": "makes no sense: progress_age_seconds: no number that anything is counted with",
    "long-words": "makes no sense: decision_id: 500000 characters, at most 16384 are taken",
}


class World:
    """An operator's coordinators, all of whose names lead to the hostile server."""

    def __init__(self, session: aiohttp.ClientSession, hostile: Hostile) -> None:
        self.hostile = hostile
        self.woken: list[Urgency] = []
        self.coordinators = JobCoordinators(
            partial(ServiceTransport, session, lambda: None),
            lambda _, urgency: self.woken.append(urgency),
            Metrics(),
            time.time,
        )

    async def silence_of(self, way: str) -> NoContact | None:
        """What a coordinator receives after one question."""
        contact = CoordinatorContact("op", time.time)
        coordinator = await self.coordinators.of(JobKey("ns", way), "token", contact, NUM_PROCESSES)
        while await coordinator.status() is None and contact.silence() is None:
            await asyncio.sleep(0.01)
        return contact.silence()


class Resolver(aiohttp.abc.AbstractResolver):
    """Every name is this machine's."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[aiohttp.abc.ResolveResult]:
        return [{"hostname": host, "host": "127.0.0.1", "port": self._port, "family": 2, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        """Nothing is open."""


def within(test: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        hostile = Hostile()
        port = await hostile.start("127.0.0.1", 0)
        connector = MeteredConnector(resolver=Resolver(port))
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            world = World(session, hostile)
            try:
                await asyncio.wait_for(test(world), 120)
            finally:
                await world.coordinators.close_all()
                await hostile.stop()

    asyncio.run(run())


def set_patience(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("rljob_operator.cluster.coordinators.STATUS_SECONDS", seconds)


def forget_peak() -> None:
    """The peak of this process' memory is what it has now: earlier tests may have had more."""
    Path("/proc/self/clear_refs").write_text("5")


def test_each_way_is_tried() -> None:
    assert {*REFUSED, UNDERSTOOD} == WAYS.keys()


@pytest.mark.parametrize("way", REFUSED)
def test_what_is_no_good_answer_is_reported_and_little_is_read_of_it(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_patience(monkeypatch, IMPATIENT_SECONDS if way == "dripping" else PATIENT_SECONDS)

    async def test(world: World) -> None:
        forget_peak()
        before = memory_mib(os.getpid(), "VmHWM")  # the server's own is in it
        silence = await world.silence_of(way)
        assert silence is not None
        assert REFUSED[way] in silence.message
        reached = (
            Reason.COORDINATOR_UNREACHABLE
            if way in ("headers", "dripping", "interim", "pipelined")
            else Reason.COORDINATOR_REFUSED
        )
        assert silence.reason is reached
        assert len(silence.message) < 400
        most = LEAST_BYTES + 4096 * NUM_PROCESSES + FRAME_BYTES + BUFFERS_BYTES
        assert world.hostile.sent[way] < most
        assert memory_mib(os.getpid(), "VmHWM") - before < MORE_MIB

    within(test)


def test_one_that_always_has_events_is_asked_as_often_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    set_patience(monkeypatch, PATIENT_SECONDS)

    async def test(world: World) -> None:
        begin = time.monotonic()
        assert await world.silence_of(UNDERSTOOD) is None
        while (asked := world.hostile.asked[UNDERSTOOD]) < LISTENING.burst + 5:
            await asyncio.sleep(0.01)
        asked_for_status = 1
        most = LISTENING.burst + (time.monotonic() - begin) / LISTENING.every_seconds + asked_for_status
        assert asked <= most
        assert set(world.woken) == {Urgency.ALARM}

    within(test)
