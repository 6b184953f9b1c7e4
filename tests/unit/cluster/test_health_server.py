"""Health: a sentence for what a restart would cure, and how old the watches are."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import ClientSession

from rljob_api.serving.page_server import PageServer
from rljob_operator.cluster import health_server
from rljob_operator.cluster.health_server import (
    LAG_LIMIT_SECONDS,
    MAIN_LOOP_LIMIT_SECONDS,
    WATCH_LIMIT_SECONDS,
    Checks,
    SideLoop,
    metrics_pages,
)
from rljob_operator.kube.errors import refusal
from rljob_operator.kube.kinds import PODS
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.watch_state import WatchState
from tests.clock import Clock

FORBIDDEN = refusal("watch", 403, "Forbidden", "no right")


def make_watch(name: str, silent_for: float = 0.0) -> WatchState:
    """One that was opened so long ago."""
    clock = Clock()
    state = WatchState(name, PODS.plural, clock)
    state.begin()
    state.opened()
    clock.now += silent_for
    return state


def make_closed_watch(name: str, error: Exception, closed_for: float) -> WatchState:
    """One that has met with nothing but this since, the last time just now."""
    clock = Clock()
    state = WatchState(name, PODS.plural, clock)
    state.begin()
    state.opened()
    state.broke(error)
    clock.now += closed_for
    state.broke(error)
    return state


def test_a_dead_watch_and_a_job_without_turns_are_reported() -> None:
    checks = Checks(watches=[make_watch("a", 1), make_watch("b", WATCH_LIMIT_SECONDS + 1)])
    assert checks.problems() == ["b has had no answer for 151 s"]

    checks.lag = lambda: LAG_LIMIT_SECONDS + 1
    checks.lease_problem = lambda: "no lease"
    assert checks.problems()[1:] == ["a job has waited for its turn for 61 s", "no lease"]


def test_a_watch_that_is_refused_makes_the_leader_unready_and_is_no_reason_to_restart_it() -> None:
    refused = make_closed_watch("a", FORBIDDEN, WATCH_LIMIT_SECONDS + 1)
    checks = Checks(watches=[refused], rehearsed=True, leads=True)
    assert checks.problems() == []
    assert checks.unready() == ["a has reported nothing for 151 s: watch: 403 Forbidden: no right"]

    checks.watches = [make_closed_watch("a", FORBIDDEN, WATCH_LIMIT_SECONDS - 1)]
    assert checks.unready() == []

    checks.watches, checks.censuses = [], [refused]
    assert checks.unready() == ["a has reported nothing for 151 s: watch: 403 Forbidden: no right"]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(refusal("watch", 401, "Unauthorized", "who?"), id="credentials are read again by a new process"),
        pytest.param(TimeoutError(), id="no answer"),
    ],
)
def test_a_watch_without_an_answer_that_a_restart_may_cure_is_unhealthy(error: Exception) -> None:
    checks = Checks(watches=[make_closed_watch("a", error, WATCH_LIMIT_SECONDS + 1)])
    assert checks.problems() == [f"a has had no answer for 151 s: {str(error) or 'TimeoutError'}"]


def test_a_watch_that_waits_for_others_is_not_taken_for_dead() -> None:
    clock = Clock()
    state = WatchState("a", PODS.plural, clock)
    clock.now += WATCH_LIMIT_SECONDS + 1
    checks = Checks(watches=[state], rehearsed=True, leads=True)
    assert checks.problems() == []
    assert checks.unready() == ["a has listed nothing yet"]


def test_a_replica_is_not_ready_before_its_options_were_tried() -> None:
    checks = Checks()
    assert checks.unready() == ["the options were not tried on this cluster yet"]
    assert checks.problems() == []

    checks.rehearsed = True
    assert checks.unready() == []

    watch = WatchState("the watch of pods", PODS.plural)
    checks.leads, checks.watches = True, [watch]
    assert checks.unready() == ["the watch of pods has listed nothing yet"]
    watch.broke(FORBIDDEN)
    assert checks.unready() == ["the watch of pods has listed nothing yet: watch: 403 Forbidden: no right"]


def test_probes_are_answered_by_what_the_main_loop_found_last_unless_it_hangs() -> None:
    clock = Clock()
    checks = Checks(clock=clock, watches=[make_watch("a", WATCH_LIMIT_SECONDS + 1)])
    assert checks.answer_live() == []
    assert checks.answer_ready() == ["the operator has not begun yet"]

    checks.find()
    checks.watches = []
    clock.now += MAIN_LOOP_LIMIT_SECONDS
    dead = "a has had no answer for 151 s"
    assert checks.answer_live() == [dead]
    clock.now += 1
    assert checks.answer_live() == [dead, "the operator's main loop has not turned for 61 s"]

    checks.rehearsed = True
    checks.find()
    assert checks.answer_ready() == []


def test_the_age_of_a_kind_is_that_of_its_oldest_watch_and_one_that_is_closed_closes_it() -> None:
    async def scraped() -> str:
        closed = make_closed_watch("c", FORBIDDEN, 2)
        checks = Checks(watches=[make_watch("a", 70), make_watch("b", 3), closed], censuses=[make_watch("d", 9)])
        server = await PageServer.open(metrics_pages(checks, Metrics()), "127.0.0.1", 0)
        try:
            async with ClientSession() as session, session.get(f"http://127.0.0.1:{server.port}/metrics") as answer:
                return await answer.text()
        finally:
            await server.close()

    text = asyncio.run(scraped())
    assert 'rljob_operator_watch_age_seconds{resource="pods"} 70.0' in text
    assert 'rljob_operator_watch_open{resource="pods"} 0.0' in text
    assert "rljob_operator_census_age_seconds 9.0" in text


async def _answers_by_a_new_task(entered: threading.Event) -> None:
    """As kopf does: what it waits for at its end was cancelled together with it, and will not come."""
    other = asyncio.create_task(asyncio.sleep(3600))
    try:
        entered.set()
        await other
    finally:
        await asyncio.shield(asyncio.create_task(asyncio.Event().wait()))


async def _ignores(entered: threading.Event) -> None:
    while True:
        with suppress(asyncio.CancelledError):
            entered.set()
            await asyncio.sleep(3600)


@pytest.mark.parametrize("work", [_answers_by_a_new_task, _ignores])
def test_a_side_loop_ends_whatever_its_tasks_make_of_a_cancellation(
    work: Callable[[threading.Event], Coroutine[Any, Any, None]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(health_server, "CANCEL_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(health_server, "END_SECONDS", 0.5)

    async def run() -> None:
        entered = threading.Event()
        async with SideLoop() as side:
            side.begin(work(entered))
            await asyncio.to_thread(entered.wait)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert ("ignore their cancellation" in caplog.text) == (work is _ignores)
