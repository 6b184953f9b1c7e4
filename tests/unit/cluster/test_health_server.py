"""Health: a sentence for what a restart would cure, and how old the watches are."""

import asyncio

from aiohttp import ClientSession

from rljob_api.serving.page_server import PageServer
from rljob_operator.cluster.health_server import (
    LAG_LIMIT_SECONDS,
    MAIN_LOOP_LIMIT_SECONDS,
    WATCH_LIMIT_SECONDS,
    Checks,
    metrics_pages,
)
from rljob_operator.kube.kinds import PODS, Resource
from rljob_operator.kube.operator_metrics import Metrics
from tests.clock import Clock


class WatchOfAge:
    def __init__(self, name: str, age: float) -> None:
        self.synced = asyncio.Event()
        self.name = name
        self._age = age

    @property
    def resource(self) -> Resource:
        return PODS

    def age(self) -> float:
        return self._age


def test_a_dead_watch_and_a_job_without_turns_are_reported() -> None:
    checks = Checks(watches=[WatchOfAge("pods in a", 1), WatchOfAge("pods in b", WATCH_LIMIT_SECONDS + 1)])
    assert checks.problems() == ["the watch of pods in b has given no sign of life for 151 s"]

    checks.lag = lambda: LAG_LIMIT_SECONDS + 1
    checks.lease_problem = lambda: "no lease"
    assert checks.problems()[1:] == ["a job has waited for its turn for 61 s", "no lease"]


def test_a_replica_is_not_ready_before_its_options_were_tried() -> None:
    checks = Checks()
    assert checks.unready() == ["the options were not tried on this cluster yet"]
    assert checks.problems() == []

    checks.rehearsed = True
    assert checks.unready() == []

    checks.leads, checks.watches = True, [WatchOfAge("pods in a", 1)]
    assert checks.unready() == ["pods in a are not listed yet"]


def test_probes_are_answered_by_what_the_main_loop_found_last_unless_it_hangs() -> None:
    clock = Clock()
    checks = Checks(clock=clock, watches=[WatchOfAge("pods in a", WATCH_LIMIT_SECONDS + 1)])
    assert checks.answer_live() == []
    assert checks.answer_ready() == ["the operator has not begun yet"]

    checks.find()
    checks.watches = []
    clock.now += MAIN_LOOP_LIMIT_SECONDS
    dead = "the watch of pods in a has given no sign of life for 151 s"
    assert checks.answer_live() == [dead]
    clock.now += 1
    assert checks.answer_live() == [dead, "the operator's main loop has not turned for 61 s"]

    checks.rehearsed = True
    checks.find()
    assert checks.answer_ready() == []


def test_the_age_of_a_kind_is_that_of_its_oldest_watch() -> None:
    async def scraped() -> str:
        checks = Checks(watches=[WatchOfAge("pods in a", 70), WatchOfAge("pods in b", 3)])
        server = await PageServer.open(metrics_pages(checks, Metrics()), "127.0.0.1", 0)
        try:
            async with ClientSession() as session, session.get(f"http://127.0.0.1:{server.port}/metrics") as answer:
                return await answer.text()
        finally:
            await server.close()

    assert 'rljob_operator_watch_age_seconds{resource="pods"} 70.0' in asyncio.run(scraped())
