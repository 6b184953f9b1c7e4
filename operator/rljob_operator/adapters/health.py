"""Health: `/healthz` and `/readyz` for the kubelet, `/metrics` for Prometheus.

Served from the start, also by a replica that waits for the lease.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from rljob_operator.adapters.metrics import Metrics
from rljob_operator.adapters.resources import Resource

WATCH_LIMIT_SECONDS = 150.0
"""A watch whose last sign of life is older is dead: it gives up a stream after 100 s, and retries within 30 s."""

LAG_LIMIT_SECONDS = 60.0
"""A job that waits for longer for its turn is not looked after."""


class Watch(Protocol):
    """Something that keeps the cache true: a watch, or the census."""

    synced: asyncio.Event
    """Set once everything was listed."""

    @property
    def name(self) -> str:
        """Which one, in words."""
        ...

    @property
    def resource(self) -> Resource:
        """What is watched."""
        ...

    def age(self) -> float:
        """Seconds since the last sign of life."""
        ...


@dataclass(slots=True)
class Checks:
    """What health is read from; filled in as the operator starts."""

    lag: Callable[[], float] = lambda: 0.0
    lease_problem: Callable[[], str | None] = lambda: None
    watches: Sequence[Watch] = field(default_factory=list)
    rehearsed: bool = False
    """Whether the API server has taken what a job would be made of by the options."""
    leads: bool = False
    before_scrape: Callable[[], None] = lambda: None
    """Brings gauges up to date."""

    def problems(self) -> list[str]:
        """A sentence for each thing that a restart of the process would cure."""
        found = [
            f"the watch of {watch.name} has given no sign of life for {watch.age():.0f} s"
            for watch in self.watches
            if watch.age() > WATCH_LIMIT_SECONDS
        ]
        if self.lag() > LAG_LIMIT_SECONDS:
            found.append(f"a job has waited for its turn for {self.lag():.0f} s")
        lease = self.lease_problem()
        return [*found, lease] if lease is not None else found

    def unready(self) -> list[str]:
        """Why this replica cannot work yet; one that waits for the lease is ready to take over, if its options work.

        An update of the Deployment goes on by it: options that cannot work must not replace a replica that does.
        """
        if not self.rehearsed:
            return ["the options were not tried on this cluster yet"]
        if not self.leads:
            return []
        return [f"{watch.name} are not listed yet" for watch in self.watches if not watch.synced.is_set()]


class HealthServer:
    """Two small HTTP servers."""

    def __init__(self, checks: Checks, metrics: Metrics, health_port: int, metrics_port: int) -> None:
        self._checks = checks
        self._metrics = metrics
        self._ports = (health_port, metrics_port)
        self._runners: list[web.AppRunner] = []

    async def start(self) -> None:
        """Listens; an OSError says which port is taken."""
        health, metrics = web.Application(), web.Application()
        health.router.add_get("/healthz", self._healthz)
        health.router.add_get("/readyz", self._readyz)
        metrics.router.add_get("/metrics", self._serve_metrics)
        for app, port in zip((health, metrics), self._ports, strict=True):
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            self._runners.append(runner)
            await web.TCPSite(runner, None, port).start()

    async def stop(self) -> None:
        """Closes both."""
        for runner in self._runners:
            await runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self._checks.problems())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer([*self._checks.problems(), *self._checks.unready()])

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        self._checks.before_scrape()
        self._metrics.queue_lag.set(self._checks.lag())
        for plural in {watch.resource.plural for watch in self._checks.watches}:
            ages = [watch.age() for watch in self._checks.watches if watch.resource.plural == plural]
            self._metrics.watch_age.labels(plural).set(max(ages))
        # In a thread: of a thousand jobs it takes 70 ms, for which no restart should wait.
        page = await asyncio.to_thread(generate_latest, self._metrics.registry)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _answer(problems: list[str]) -> web.Response:
    return web.Response(text="\n".join(problems) or "ok", status=503 if problems else 200)
