"""The door to the API server: what never answers, what goes silent, and what is written without the lease."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from rljob_operator.kube.api import Api
from rljob_operator.kube.errors import ApiUnreachable, LeadershipLost
from rljob_operator.kube.kinds import PODS
from rljob_operator.kube.operator_metrics import Metrics

param = pytest.param
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def never(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def begins(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    await answer.write(b"{}\n")
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(
    ("handler", "request_seconds", "silence_seconds", "received"),
    [
        param(never, 0.1, 3600.0, b"", id="a watch that does not begin is not waited for as long as one that is quiet"),
        param(begins, 3600.0, 2.0, b"{}\n", id="a watch that goes silent is given up"),
    ],
)
def test_a_watch_on_a_dead_connection_ends(
    monkeypatch: pytest.MonkeyPatch, handler: Handler, request_seconds: float, silence_seconds: float, received: bytes
) -> None:
    monkeypatch.setattr("rljob_operator.kube.api.REQUEST_SECONDS", request_seconds)
    message = bytearray()

    async def watch() -> None:
        app = web.Application()
        app.router.add_get(PODS.path(None), handler)
        async with TestServer(app) as server, ApiClient(Configuration(host=str(server.make_url("")))) as client:
            api = Api(client, Metrics(), lambda: None)
            async with api.watch(PODS, None, {}, "", silence_seconds) as stream:
                async for chunk in stream.iter_any():
                    message.extend(chunk)

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(watch(), 60))
    assert message == received


Ask = Callable[[Api], Awaitable[object]]
BODY = {"metadata": {"name": "pod"}}
WRITES: dict[str, Ask] = {
    "create": lambda api: api.create(PODS, "ns", BODY),
    "apply what is new": lambda api: api.apply_new(PODS, "ns", "pod", BODY),
    "apply": lambda api: api.apply(PODS, "ns", "pod", BODY, "uid"),
    "patch": lambda api: api.merge(PODS, "ns", "pod", BODY),
    "delete": lambda api: api.delete(PODS, "ns", "pod", {}),
    "tell a coordinator": lambda api: api.proxy("POST", "/", {}, {}, 1.0, 1),
}
NO_WRITES: dict[str, Ask] = {
    "get": lambda api: api.get(PODS, "ns", "pod"),
    "ask a coordinator": lambda api: api.proxy("GET", "/", None, {}, 1.0, 1),
    "take the lease": lambda api: api.claim("PUT", PODS, "/", BODY),
}


def test_without_the_lease_nothing_is_sent_that_writes() -> None:
    def lost() -> None:
        raise LeadershipLost("not renewed")

    async def ask_no_one() -> dict[str, type[object]]:
        async with ApiClient(Configuration(host="http://127.0.0.1:9")) as client:
            api = Api(client, Metrics(), lost)
            asks = {**WRITES, **NO_WRITES}
            ends = await asyncio.gather(*(ask(api) for ask in asks.values()), return_exceptions=True)
            return {name: type(end) for name, end in zip(asks, ends, strict=True)}

    ends = asyncio.run(asyncio.wait_for(ask_no_one(), 60))
    assert ends == {**dict.fromkeys(WRITES, LeadershipLost), **dict.fromkeys(NO_WRITES, ApiUnreachable)}


def test_an_apply_names_the_object_that_it_is_for() -> None:
    """By its uid, or by a version that none has: else it would take over what another has made meanwhile."""
    received: list[tuple[str, str, dict[str, str]]] = []

    async def answer(request: web.Request) -> web.Response:
        received.append((request.query["fieldManager"], request.content_type, (await request.json())["metadata"]))
        return web.json_response({})

    async def apply() -> None:
        app = web.Application()
        app.router.add_patch(PODS.path("ns", "pod"), answer)
        async with TestServer(app) as server, ApiClient(Configuration(host=str(server.make_url("")))) as client:
            api = Api(client, Metrics(), lambda: None)
            await api.apply_new(PODS, "ns", "pod", BODY)
            await api.apply(PODS, "ns", "pod", BODY, "its uid")

    asyncio.run(asyncio.wait_for(apply(), 60))
    asked = ("rljob-operator", "application/apply-patch+yaml")
    assert received == [(*asked, {"name": "pod", "resourceVersion": "1"}), (*asked, {"name": "pod", "uid": "its uid"})]
