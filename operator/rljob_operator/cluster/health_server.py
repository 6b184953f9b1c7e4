"""Probe and metrics pages, and the side loop: a thread with an event loop for what cannot wait for the main loop.

The kubelet's probes and the lease run in the side loop, since reading a list of thousands of pods occupies the main
loop for seconds. What lives in the side loop (HTTP sessions, locks) is made in it and used nowhere else.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from rljob_api.serving.page_server import Pages
from rljob_api.serving.pages import Reply
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.watch_state import WatchState

_T = TypeVar("_T")


_log = logging.getLogger(__name__)


class SideLoop:
    """Use as an asynchronous context manager; what still runs in it at the end is cancelled, and the thread joined."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name="side loop", daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    def begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Future[_T]:
        """Starts this in the side loop. Cancelling the future cancels it there."""
        there: Future[_T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return asyncio.wrap_future(there)

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Its result, or what it raised."""
        return await self.begin(work)

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            _end_tasks(self._loop)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


END_SECONDS = 10.0
"""A task that runs on for so long after its first cancellation is given up with its loop."""


CANCEL_AGAIN_SECONDS = 0.5


_LOOK_SECONDS = 0.02


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels what is in a loop until nothing is.

    Once is not enough: kopf answers a cancellation by a new task, which waits for a task that was cancelled with it.
    No task does this: kopf cancels all that are in its loop.
    """
    begun = time.monotonic()
    again = begun
    while left := asyncio.all_tasks(loop):
        now = time.monotonic()
        if now > begun + END_SECONDS:
            names = ", ".join(sorted(task.get_name() for task in left))
            _log.error("a loop ends although tasks of it ignore their cancellation for %g s: %s", END_SECONDS, names)
            return
        if now >= again:
            again = now + CANCEL_AGAIN_SECONDS
            for task in left:
                task.cancel()
        loop.call_later(_LOOK_SECONDS, loop.stop)
        loop.run_forever()


WATCH_LIMIT_SECONDS = 150.0
"""A watch that was silent for longer is dead: it gives up a stream after 100 s, and retries within 30 s."""


LAG_LIMIT_SECONDS = 60.0
"""A job that waits for longer for its turn is reported."""


MAIN_LOOP_LIMIT_SECONDS = 60.0
"""A main loop that has not turned for longer hangs; on a node with 24 busy processes per core it is late by seconds."""


_FIND_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class HealthFindings:
    """What the main loop found in its last check."""

    at: float
    """By the monotonic clock."""
    problems: Sequence[str] = ()
    unready: Sequence[str] = ()


@dataclass(slots=True)
class Checks:
    """What health is read from; filled in as the operator starts.

    The main loop runs `keep_finding`; any thread may ask `answer_live`, `answer_ready` and `main_loop_age`.
    """

    lag: Callable[[], float] = lambda: 0.0
    lease_problem: Callable[[], str | None] = lambda: None
    watches: Sequence[WatchState] = field(default_factory=list)
    censuses: Sequence[WatchState] = field(default_factory=list)
    rehearsed: bool = False
    """Whether the API server has taken what a job would be made of by the options."""
    leads: bool = False
    before_scrape: Callable[[], None] = lambda: None
    """Brings gauges up to date."""
    clock: Callable[[], float] = time.monotonic
    findings: HealthFindings = field(init=False)

    def __post_init__(self) -> None:
        """A main loop that never turned counts from here."""
        self.findings = HealthFindings(self.clock(), unready=["the operator has not begun yet"])

    async def keep_finding(self) -> None:
        """Looks once a second, until cancelled."""
        while True:
            self.find()
            await asyncio.sleep(_FIND_SECONDS)

    def find(self) -> None:
        """Looks now; for the thread that owns queue and watches."""
        self.findings = HealthFindings(self.clock(), self.problems(), self.unready())

    def main_loop_age(self) -> float:
        """Seconds since the last check of the main loop."""
        return self.clock() - self.findings.at

    def main_loop_hangs(self) -> bool:
        """Whether it can no longer be taken for busy."""
        return self.main_loop_age() > MAIN_LOOP_LIMIT_SECONDS

    def answer_live(self) -> list[str]:
        """What `/healthz` answers: a sentence for each thing that a restart of the process would cure."""
        hang = [f"the operator's main loop has not turned for {self.main_loop_age():.0f} s"]
        return [*self.findings.problems, *(hang if self.main_loop_hangs() else [])]

    def answer_ready(self) -> list[str]:
        """What `/readyz` answers."""
        return [*self.answer_live(), *self.findings.unready]

    def problems(self) -> list[str]:
        """A sentence for each thing that a restart of the process would cure."""
        found = [
            f"{watch.name} has had no answer for {watch.silence():.0f} s{_because(watch)}"
            for watch in (*self.watches, *self.censuses)
            if watch.silence() > WATCH_LIMIT_SECONDS
        ]
        if self.lag() > LAG_LIMIT_SECONDS:
            found.append(f"a job has waited for its turn for {self.lag():.0f} s")
        lease = self.lease_problem()
        return [*found, lease] if lease is not None else found

    def unready(self) -> list[str]:
        """Why this replica cannot work; one that waits for the lease is ready to take over, if its options work.

        A watch that the API server refuses (a right, the CRD) is no reason to end the process, which would watch the
        other kinds and namespaces anew and not this one.

        An update of the Deployment goes on by it: options that cannot work must not replace a replica that does.
        """
        if not self.rehearsed:
            return ["the options were not tried on this cluster yet"]
        if not self.leads:
            return []
        watches = (*self.watches, *self.censuses)
        unlisted = [f"{watch.name} has listed nothing yet{_because(watch)}" for watch in watches if not watch.listed]
        return unlisted + [
            f"{watch.name} has reported nothing for {watch.age():.0f} s{_because(watch)}"
            for watch in watches
            if watch.listed and watch.age() > WATCH_LIMIT_SECONDS
        ]


def _because(watch: WatchState) -> str:
    return f": {watch.problem}" if watch.problem else ""


def probe_pages(checks: Checks) -> Pages:
    """For the kubelet; any thread's loop may serve them."""

    async def healthz() -> Reply:
        return _answer(checks.answer_live())

    async def readyz() -> Reply:
        return _answer(checks.answer_ready())

    return {"/healthz": healthz, "/readyz": readyz}


def metrics_pages(checks: Checks, metrics: Metrics) -> Pages:
    """For Prometheus; served by the main loop, which owns what gauges are read from."""

    async def page() -> Reply:
        checks.before_scrape()
        metrics.queue_lag.set(checks.lag())
        for plural in {watch.resource for watch in checks.watches}:
            watches = [watch for watch in checks.watches if watch.resource == plural]
            metrics.watch_age.labels(plural).set(max(watch.age() for watch in watches))
            metrics.watch_open.labels(plural).set(min(watch.is_open for watch in watches))
        metrics.census_age.set(max((census.age() for census in checks.censuses), default=0.0))
        # In a thread: of a thousand jobs it takes 70 ms, for which no restart should wait.
        text = await asyncio.to_thread(generate_latest, metrics.registry)
        return Reply(200, text.decode(), CONTENT_TYPE_LATEST)

    return {"/metrics": page}


def _answer(problems: list[str]) -> Reply:
    return Reply(503 if problems else 200, "\n".join(problems) or "ok")
