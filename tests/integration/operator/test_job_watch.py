"""The watch of RLJobs, real kopf before a small API server: whatever closes it, it is opened again, and counted.

The API server here serves discovery, lists and watches; it loses the CRD and the right to watch, and it says nothing.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from rljob_operator.cluster import job_watch
from rljob_operator.cluster.job_watch import JobWatch
from rljob_operator.kube.api import Api
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.kinds import RLJOBS, Resource
from rljob_operator.kube.operator_metrics import Metrics

GROUP = f"/apis/{RLJOBS.api_version}"
NAMESPACE = "ns"
PATIENCE_SECONDS = 40.0

Json = dict[str, Any]


class ApiServer:
    """RLJobs of one namespace. `served`: whether the CRD is there. `refusal`: the status of each list and watch."""

    def __init__(self) -> None:
        self.served = True
        self.refusal = 0
        self.jobs: list[Json] = []
        self.refused = 0
        self.lists = 0
        self.watches = 0
        self._streams: set[asyncio.Queue[Json | None]] = set()
        self._version = 10

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/api", self._answer({"versions": ["v1"]}))
        app.router.add_get("/api/v1", self._answer(_resources("v1", "namespaces", "events")))
        app.router.add_get("/apis", self._groups)
        extensions = "apiextensions.k8s.io/v1"
        app.router.add_get(f"/apis/{extensions}", self._answer(_resources(extensions, "customresourcedefinitions")))
        app.router.add_get(GROUP, self._group)
        app.router.add_get(RLJOBS.path(NAMESPACE), self._jobs)
        return app

    def add(self, name: str) -> None:
        """A job comes, and every open watch reports it."""
        self._version += 1
        metadata = {"namespace": NAMESPACE, "name": name, "uid": name, "resourceVersion": str(self._version)}
        job = {"apiVersion": RLJOBS.api_version, "kind": RLJOBS.kind, "metadata": metadata, "spec": {}}
        self.jobs.append(job)
        self.send({"type": "ADDED", "object": job})

    def send(self, event: Json | None) -> None:
        """To every open watch; None ends them."""
        for stream in self._streams:
            stream.put_nowait(event)

    def forget_streams(self) -> None:
        """Connections stay open and bring nothing any more, as behind a firewall that has lost them."""
        self._streams.clear()

    def delete_crd(self) -> None:
        """With all jobs; watches end."""
        self.served, self.jobs = False, []
        self.send(None)

    async def _groups(self, _: web.Request) -> web.Response:
        names = ["apiextensions.k8s.io/v1", *([RLJOBS.api_version] if self.served else [])]
        groups = []
        for name in names:
            version = {"groupVersion": name, "version": name.partition("/")[2]}
            groups.append({"name": name.partition("/")[0], "versions": [version], "preferredVersion": version})
        return web.json_response({"groups": groups})

    async def _group(self, _: web.Request) -> web.Response:
        return web.json_response(_resources(RLJOBS.api_version, RLJOBS.plural)) if self.served else _status(404)

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        if not self.served or self.refusal:
            self.refused += 1
            return _status(self.refusal or 404)
        if "watch" not in request.query:
            self.lists += 1
            return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": self.jobs})
        self.watches += 1
        stream: asyncio.Queue[Json | None] = asyncio.Queue()
        self._streams.add(stream)
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await stream.get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
        self._streams.discard(stream)
        return response

    @staticmethod
    def _answer(body: Json) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            return web.json_response(body)

        return answer


def _status(code: int) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": "ByTheTest"}, status=code)


def _resources(version: str, *plurals: str) -> Json:
    verbs = ["get", "list", "watch", "patch"]
    resources = [
        {"name": plural, "kind": plural, "singularName": "", "namespaced": plural == RLJOBS.plural, "verbs": verbs}
        for plural in plurals
    ]
    return {"groupVersion": version, "resources": resources}


class World:
    """The watch before the server, and what came of it."""

    def __init__(self, server: ApiServer, api: Api) -> None:
        self.server = server
        self.metrics = Metrics()
        self.cache = Cache(lambda key, urgency: None)
        self.new_lists = 0
        self.watch = JobWatch(api, NAMESPACE, self.cache, self.metrics, self._listed)

    def _listed(self) -> None:
        self.new_lists += 1

    def reopened_by(self) -> set[str]:
        """Causes."""
        samples = [sample for family in self.metrics.watch_restarts.collect() for sample in family.samples]
        return {sample.labels["cause"] for sample in samples if sample.value and sample.name.endswith("_total")}

    def knows(self, *names: str) -> bool:
        return {key.name for key in self.cache.jobs_known()} >= set(names)

    async def until(self, what: str, holds: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not holds():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"waited for {what}: {self.watch.state}") from None


@asynccontextmanager
async def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, server: ApiServer) -> AsyncIterator[World]:
    runner = web.AppRunner(server.app(), shutdown_timeout=0.1)
    await runner.setup()
    await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
    host = f"http://127.0.0.1:{cast(Any, site)._server.sockets[0].getsockname()[1]}"
    one = {"name": "one", "cluster": {"server": host}, "user": {}, "context": {"cluster": "one", "user": "one"}}
    (folder / "config").write_text(
        json.dumps({"current-context": "one", "clusters": [one], "users": [one], "contexts": [one]})
    )
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
    async with ApiClient(Configuration(host=host)) as client:
        world = World(server, Api(client, Metrics(), lambda: None))
        running = asyncio.create_task(world.watch.run())
        try:
            yield world
            assert not running.done()
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            server.send(None)
            await runner.cleanup()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_watch, "RETRY_SECONDS", (0.01, 0.05))
    monkeypatch.setattr(job_watch, "KOPF_BACKOFFS", (0.01,))
    monkeypatch.setattr(job_watch, "LOOK_SECONDS", 0.05)


def test_a_definition_that_comes_later_is_watched_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        server = ApiServer()
        server.served = False
        async with watched(tmp_path, monkeypatch, server) as world:
            state = world.watch.state
            await world.until("the missing definition to be noticed", lambda: "apply the CRD" in state.problem)
            assert (state.is_open, state.listed) == (False, False)
            server.served = True
            server.add("early")
            await world.until("the job that was there", lambda: world.knows("early") and state.is_open)
            server.add("late")
            await world.until("the job that came later", lambda: world.knows("late"))
            assert state.problem == ""
            assert world.new_lists == 0, "of the first list nothing can have gone"

    asyncio.run(scenario())


def test_a_definition_that_is_deleted_and_applied_again_is_watched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        server = ApiServer()
        server.add("before")
        async with watched(tmp_path, monkeypatch, server) as world:
            await world.until("the first watch", lambda: world.watch.state.is_open and world.knows("before"))
            other = asyncio.create_task(asyncio.Event().wait())
            server.delete_crd()
            await world.until("the missing definition", lambda: "apply the CRD" in world.watch.state.problem)
            assert not world.watch.state.is_open
            server.served = True
            await world.until("the next watch", lambda: world.watch.state.is_open)
            server.add("after")
            await world.until("a job of the new definition", lambda: world.knows("after"))
            await world.until("a count of what has gone with the old one", lambda: world.new_lists)
            assert not other.done(), "kopf's end has cancelled a task that is not its own"
            other.cancel()
            assert "ApiNotFound" in world.reopened_by()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        pytest.param(403, "ApiRefused", id="a right that is taken away and given back"),
        pytest.param(401, "ApiRefused", id="a token that is taken back and taken again"),
        pytest.param(500, "ApiRefused", id="a server whose storage fails"),
        pytest.param(410, "ApiGone", id="a version that is too old for every list"),
    ],
)
def test_a_watch_that_is_refused_opens_when_it_is_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, cause: str
) -> None:
    async def scenario() -> None:
        server = ApiServer()
        async with watched(tmp_path, monkeypatch, server) as world:
            await world.until("the first watch", lambda: world.watch.state.is_open)
            server.refusal = status
            server.send(None)
            await world.until("the refusal", lambda: str(status) in world.watch.state.problem)
            await world.until("the cause to be counted", lambda: cause in world.reopened_by())
            assert not world.watch.state.is_open
            server.refusal = 0
            await world.until("the next watch", lambda: world.watch.state.is_open)
            server.add("after")
            await world.until("a job of the next watch", lambda: world.knows("after"))

    asyncio.run(scenario())


def test_a_token_that_is_refused_is_not_given_again_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "RETRY_SECONDS", (60.0, 60.0))

    async def scenario() -> None:
        server = ApiServer()
        server.refusal = 401
        async with watched(tmp_path, monkeypatch, server) as world:
            await world.until("the end of kopf", lambda: "ApiRefused" in world.reopened_by())
            assert server.refused == 1

    asyncio.run(scenario())


def test_a_version_that_is_too_old_is_listed_again_and_what_has_gone_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        server = ApiServer()
        async with watched(tmp_path, monkeypatch, server) as world:
            await world.until("the first watch", lambda: world.watch.state.is_open)
            server.send({"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}})
            await world.until("another list", lambda: server.lists == 2 and world.new_lists == 1)
            await world.until("the next watch", lambda: world.watch.state.is_open)
            assert world.reopened_by() == {"gone"}
            server.add("after")
            await world.until("a job of the next watch", lambda: world.knows("after"))

    asyncio.run(scenario())


def test_a_connection_that_is_lost_without_a_sign_is_given_up_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "SILENCE_SECONDS", 0.5)

    async def scenario() -> None:
        server = ApiServer()
        async with watched(tmp_path, monkeypatch, server) as world:
            await world.until("the first watch", lambda: world.watch.state.is_open)
            server.forget_streams()
            opened, count = server.watches, world.watch.state.opened_count
            await world.until("the next watch", lambda: server.watches > opened)
            await world.until("its answer", lambda: world.watch.state.opened_count > count)
            server.add("after")
            await world.until("a job of the next watch", lambda: world.knows("after"))

    asyncio.run(scenario())


def test_a_kopf_that_opens_no_watch_is_ended_and_another_one_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that begins just as the definition is deleted: it has nothing to watch, and asks no more."""
    monkeypatch.setattr(job_watch, "OPEN_SECONDS", 1.0)

    class Late(Api):
        async def serves(self, resource: Resource) -> bool:
            return True

    async def scenario() -> None:
        server = ApiServer()
        server.served = False
        async with watched(tmp_path, monkeypatch, server) as world:
            cast(Any, world.watch)._api.__class__ = Late
            await world.until("a kopf to be given up", lambda: "kopf" in world.reopened_by())
            server.served = True
            await world.until("the next watch", lambda: world.watch.state.is_open)

    asyncio.run(scenario())
