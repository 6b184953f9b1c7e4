"""The operator goes by the API server's clock, whatever that of its own machine and however late answers come."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

import rljob_operator
from rljob_operator.kube.api import Api
from rljob_operator.kube.clock import DATE_SECONDS, TOLERANCE_SECONDS, ApiClock
from rljob_operator.kube.errors import ApiRefused
from rljob_operator.kube.kinds import PODS
from rljob_operator.kube.operator_metrics import Metrics
from tests.clock import Clock

param = pytest.param
HOUR = 3600.0
SERVER = 1_800_000_000.0
"""Unix time by the API server's clock when the tests begin."""


@dataclass(frozen=True)
class Answer:
    """Of a request that is sent so long after the one before."""

    pause: float = 0.0
    there: float = 0.0
    """Seconds on the way to the API server, which dates its answer then."""
    back: float = 0.0
    skew: float = 0.0
    """By how much another API server that answers is ahead of the first."""


class World:
    """An operator whose machine is so many seconds ahead of the API server."""

    def __init__(self, ahead: float) -> None:
        self.passed = Clock(0.0)
        self.steps = 0.0
        self.clock = ApiClock(lambda: SERVER + ahead + self.steps + self.passed.now, lambda: 500.0 + self.passed.now)

    @property
    def error(self) -> float:
        return self.clock() - (SERVER + self.passed.now)

    def answered(self, answer: Answer) -> None:
        self.passed.sleep(answer.pause)
        sent = self.clock.begin()
        self.passed.sleep(answer.there)
        date = formatdate(int(SERVER + self.passed.now + answer.skew), usegmt=True)
        self.passed.sleep(answer.back)
        self.clock.answered(date, sent)


@pytest.mark.parametrize(
    ("ahead", "answers", "least", "most"),
    [
        param(HOUR, [], HOUR, HOUR, id="before the first answer its own machine's"),
        param(HOUR, [Answer()], -0.5, 0.5, id="an hour ahead, to half of what a Date leaves open"),
        param(-HOUR, [Answer()], -0.5, 0.5, id="an hour behind"),
        param(HOUR, [Answer(there=8)], -4.5, 4.5, id="a late answer leaves half of its delay open"),
        param(HOUR, [Answer(back=8), Answer(pause=1)], -0.5, 0.5, id="and the next one that is not late closes it"),
        param(2.0, [Answer()], 2.0, 2.0, id="two seconds are left as they are"),
        param(2.0, [Answer(there=0.3, back=14)], 2.0, 2.0, id="and a late answer that agrees changes nothing"),
        param(0.0, [Answer(skew=2), Answer(pause=1, skew=-2)], 0.0, 0.0, id="it does not follow one server of several"),
        param(5.0, [Answer()], -0.5, 0.5, id="five seconds are too many"),
    ],
)
def test_the_time_after_some_answers(ahead: float, answers: Sequence[Answer], least: float, most: float) -> None:
    world = World(ahead)
    for answer in answers:
        world.answered(answer)
    assert least <= world.error <= most


def test_a_step_of_its_machines_clock_changes_nothing() -> None:
    world = World(0.0)
    world.answered(Answer())
    world.steps = -HOUR
    world.passed.sleep(60)
    assert world.error == 0.0


@pytest.mark.parametrize("date", ["", "yesterday", "Thu, 99 Foo 2026 25:61:61 GMT"])
def test_what_is_no_date_is_passed_over(date: str) -> None:
    world = World(HOUR)
    world.clock.answered(date, world.clock.begin())
    assert world.error == HOUR


delays = st.floats(0, 15)
answers = st.builds(Answer, pause=st.floats(0, 600), there=delays, back=delays)


@given(st.floats(-2 * HOUR, 2 * HOUR), st.lists(answers, min_size=1, max_size=8))
def test_it_is_never_further_off_than_the_last_answer_leaves_open(ahead: float, received: list[Answer]) -> None:
    world = World(ahead)
    for answer in received:
        world.answered(answer)
        is_new = answer.pause + answer.there + answer.back >= 1.0
        if is_new:  # answers of one second bound the time as the first of them does
            assert abs(world.error) <= TOLERANCE_SECONDS + DATE_SECONDS + answer.there + answer.back + 1e-3


@given(st.floats(-TOLERANCE_SECONDS, TOLERANCE_SECONDS), st.lists(answers, max_size=8))
def test_clocks_that_agree_are_never_corrected(ahead: float, received: list[Answer]) -> None:
    world = World(ahead)
    for answer in received:
        world.answered(answer)
    assert world.error == pytest.approx(ahead, abs=1e-3)


LONG_AGO = "Thu, 01 Jan 2026 00:00:00 GMT"
LONG_AGO_SECONDS = 1_767_225_600.0
Ask = Callable[[Api], Awaitable[object]]


async def watch(api: Api) -> None:
    async with api.watch(PODS, None, {}, "", 60.0):
        pass


@pytest.mark.parametrize(
    ("ask", "status", "counts"),
    [
        param(lambda api: api.get(PODS, "ns", "pod"), 200, True, id="an answer"),
        param(lambda api: api.get(PODS, "ns", "pod"), 404, True, id="a refusal"),
        param(lambda api: api.get(PODS, "ns", "pod"), 503, False, id="what is between may answer in its place"),
        param(watch, 200, True, id="the head of a watch"),
        param(lambda api: api.proxy("GET", "/a", None, {}, 30.0, 99), 200, False, id="a Service behind the API server"),
    ],
)
def test_whose_date_counts(ask: Ask, status: int, counts: bool) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({}, status=status, headers={"Date": LONG_AGO})

    async def difference() -> float:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        async with TestServer(app) as server, ApiClient(Configuration(host=str(server.make_url("")))) as client:
            api = Api(client, Metrics(), lambda: None)
            with suppress(ApiRefused):
                await ask(api)
            return api.clock() - LONG_AGO_SECONDS

    assert (asyncio.run(asyncio.wait_for(difference(), 60)) < 60) is counts


def test_no_other_room_of_the_operator_reads_its_machines_clock() -> None:
    """`local` does: everything of a local run is on one machine. Rates and pauses go by the monotonic clock."""
    root = Path(rljob_operator.__path__[0])
    rooms = ("kube", "cluster", "core", "build", "coordinator_client")
    readers = {
        str(file.relative_to(root))
        for room in rooms
        for file in (root / room).rglob("*.py")
        if re.search(r"\btime\.time\b|\bdatetime\.now\b|\butcnow\b", file.read_text())
    }
    assert readers == {"kube/clock.py", "kube/lease.py"}, "a Lease's time is compared with itself alone"
