"""The door to the API server, asked of a server of our own: what never answers, and what answers and goes silent."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from rljob_operator.adapters.api import Api
from rljob_operator.adapters.metrics import Metrics
from rljob_operator.adapters.resources import PODS

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
    ("handler", "request_seconds", "silence_seconds", "heard"),
    [
        param(never, 0.1, 3600.0, b"", id="a watch that does not begin is not waited for as long as one that is quiet"),
        param(begins, 3600.0, 2.0, b"{}\n", id="a watch that goes silent is given up"),
    ],
)
def test_a_watch_on_a_dead_connection_ends(
    monkeypatch: pytest.MonkeyPatch, handler: Handler, request_seconds: float, silence_seconds: float, heard: bytes
) -> None:
    monkeypatch.setattr("rljob_operator.adapters.api.REQUEST_SECONDS", request_seconds)
    said = bytearray()

    async def watch() -> None:
        app = web.Application()
        app.router.add_get(PODS.path(None), handler)
        async with TestServer(app) as server, ApiClient(Configuration(host=str(server.make_url("")))) as client:
            api = Api(client, Metrics(), lambda: None)
            async with api.watch(PODS, None, {}, "", silence_seconds) as stream:
                async for chunk in stream.iter_any():
                    said.extend(chunk)

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(watch(), 60))
    assert said == heard
