"""The stand-in: one HTTP server that is the coordinator of every job; the Host header says of which.

`python -m tests.bench.operator_scale.stand_in ADDRESS PORT`. The paths below `/stand-in` are the benchmark's own: how
fast jobs train, who fails, and how long the operator took.
"""

import asyncio
import random
import sys
import time
from collections import defaultdict
from dataclasses import asdict

from aiohttp import web

from rljob_api.names import Role
from rljob_api.wire.epochs import DesiredState, EpochRequest
from rljob_api.wire.failures import FailureAcknowledgement
from tests.bench.operator_scale.pretended_coordinator import PretendedCoordinator

_JSON = "application/json"


class StandIn:
    """All coordinators, by host."""

    def __init__(self) -> None:
        self._jobs: defaultdict[str, PretendedCoordinator] = defaultdict(PretendedCoordinator)
        self._step_seconds: float | None = None
        self._trained_at: dict[str, float] = {}

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=1 << 24)
        app.router.add_get("/v1/status", self._status)
        app.router.add_get("/v1/events", self._events)
        app.router.add_post("/v1/epoch", self._epoch)
        app.router.add_put("/v1/desired", self._desired)
        app.router.add_post("/v1/failures/acknowledge", self._acknowledge)
        app.router.add_post("/stand-in/pace", self._pace)
        app.router.add_post("/stand-in/fail", self._fail)
        app.router.add_get("/stand-in/restarts", self._restarts)
        return app

    async def train(self) -> None:
        """Until cancelled: every job that can trains a step each `step_seconds`, not all at the same moment."""
        while True:
            await asyncio.sleep(0.05)
            if self._step_seconds is None:
                continue
            now = time.monotonic()
            for host, job in list(self._jobs.items()):
                due = self._trained_at.setdefault(host, now - random.uniform(0, self._step_seconds))
                if job.trains and now - due >= self._step_seconds:
                    self._trained_at[host] = max(due + self._step_seconds, now - self._step_seconds)
                    job.train()

    def _of(self, request: web.Request) -> PretendedCoordinator:
        return self._jobs[request.host]

    async def _status(self, request: web.Request) -> web.Response:
        return web.Response(text=self._of(request).status().model_dump_json(), content_type=_JSON)

    async def _events(self, request: web.Request) -> web.Response:
        after, wait = int(request.query.get("after", 0)), float(request.query.get("wait", 0))
        page = await self._of(request).events(after, wait, request.query.getall("quiet", []))
        return web.Response(text=page.model_dump_json(), content_type=_JSON)

    async def _epoch(self, request: web.Request) -> web.Response:
        point = self._of(request).raise_epoch(EpochRequest.model_validate_json(await request.read()))
        return web.Response(text=point.model_dump_json(), content_type=_JSON)

    async def _desired(self, request: web.Request) -> web.Response:
        self._of(request).order(DesiredState.model_validate_json(await request.read()))
        return web.Response(text="null", content_type=_JSON)

    async def _acknowledge(self, request: web.Request) -> web.Response:
        self._of(request).acknowledge(FailureAcknowledgement.model_validate_json(await request.read()).ids)
        return web.Response(text="null", content_type=_JSON)

    async def _pace(self, request: web.Request) -> web.Response:
        self._step_seconds = (await request.json())["step_seconds"]
        return web.Response(text="null", content_type=_JSON)

    async def _fail(self, request: web.Request) -> web.Response:
        for host in (await request.json())["hosts"]:
            self._jobs[host].fail(Role.ACTOR)
        return web.Response(text="null", content_type=_JSON)

    async def _restarts(self, _: web.Request) -> web.Response:
        reported = {host: [asdict(restart) for restart in job.restarts] for host, job in self._jobs.items()}
        return web.json_response({"restarts": reported, "training": sum(job.trains for job in self._jobs.values())})


async def main(address: str, port: int) -> None:
    stand_in = StandIn()
    runner = web.AppRunner(stand_in.app(), access_log=None, keepalive_timeout=600)
    await runner.setup()
    await web.TCPSite(runner, address, port, backlog=4096).start()
    await stand_in.train()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
