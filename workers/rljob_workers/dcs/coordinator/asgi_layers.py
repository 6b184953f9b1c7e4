"""ASGI layers around the routes of `app`: the token check, and the requests that every pod sends all the time.

Beats, polls and questions for weights bypass the framework, which would cost hundreds of ranks its layers many times a
second. The same models check them, with the same refusals. Decides nothing.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from urllib.parse import parse_qsl

from pydantic import Field, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from rljob_api.base import WireModel
from rljob_api.names import Lineage, Stream, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_api.wire.launchers import LauncherAnswer, LauncherPoll
from rljob_api.wire.ranks import Beat
from rljob_workers.dcs.coordinator.context import Refused, Topic, bad_request, invalid
from rljob_workers.dcs.coordinator.serial_executor import Beats, SerialExecutor

LONGEST_WAIT_SECONDS = 30.0


_JSON = (b"content-type", b"application/json")


_POLL = ("/v1/launchers/", "/poll")


_WEIGHTS = "/v1/weights/"


Answering = Callable[[], Awaitable[bytes]]


class _Asked(WireModel):
    """The question for weights newer than the one that is held."""

    stream: Stream
    lineage: Lineage = Lineage(-1)
    version: WeightVersion = WeightVersion(-1)
    wait: float = Field(default=0.0, ge=0, le=LONGEST_WAIT_SECONDS)


class _News(Enum):
    """A poll that is to be noted before it can be answered."""

    NEWS = "news"


class HotRoutes:
    """An ASGI application around another, which gets all other requests."""

    def __init__(self, app: ASGIApp, executor: SerialExecutor) -> None:
        self._app = app
        self._executor = executor
        self._coordinator = executor.coordinator
        self._beats = Beats(executor, executor.coordinator.beats)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        answering = self._answering(scope, receive) if scope["type"] == "http" else None
        if answering is None:
            await self._app(scope, receive, send)
            return
        try:
            status, body = 200, await answering()
        except ValidationError as error:
            refused = invalid(error.errors())
            status, body = refused.status, refused.body
        except Refused as refused:
            status, body = refused.status, refused.body
        await send_json(send, status, body)

    def _answering(self, scope: Scope, receive: Receive) -> Answering | None:
        """What answers the request; None: one for the other application."""
        method, path = scope["method"], scope["path"]
        if method == "POST":
            if path == "/v1/ranks/beat":
                return partial(self._beat, receive)
            if path.startswith(_POLL[0]) and path.endswith(_POLL[1]):
                return partial(self._poll, path[len(_POLL[0]) : -len(_POLL[1])], receive)
        elif method == "GET" and path.startswith(_WEIGHTS):
            return partial(self._weights, path[len(_WEIGHTS) :], scope["query_string"])
        return None

    async def _beat(self, receive: Receive) -> bytes:
        beat = Beat.model_validate_json(await _body(receive))
        self._coordinator.ranks.receive_beat(beat)
        answer = await self._executor.when_open(partial(self._beats.answer, beat))
        return answer.model_dump_json().encode()

    async def _poll(self, launcher: str, receive: Receive) -> bytes:
        poll = LauncherPoll.model_validate_json(await _body(receive))
        launchers = self._coordinator.launchers
        launchers.receive_poll(launcher, poll)
        if not self._coordinator.gate.is_open:
            await self._executor.wait_open()  # a closed server is not asked again and again
        answer = await self._await_order(launcher, poll)
        launchers.note_answered(launcher)
        return answer.model_dump_json().encode()

    async def _await_order(self, launcher: str, poll: LauncherPoll) -> LauncherAnswer:
        """An order other than the carried one, or what there is when the wait is over."""
        launchers, executor, carried = self._coordinator.launchers, self._executor, poll.carried
        until = time.monotonic() + poll.wait_seconds

        def reading() -> LauncherAnswer | _News | None:
            self._coordinator.gate.require_open()
            if launchers.is_news(launcher, carried):
                return _News.NEWS
            answer = launchers.answer(launcher, carried)
            return answer if answer.order != carried and answer.order is not None else None

        while True:
            left = until - time.monotonic()
            key = executor.read(partial(launchers.pod_of, launcher))
            answer: LauncherAnswer | _News | None = await executor.await_answer(Topic.ORDERS, reading, left, key)
            if not isinstance(answer, _News):
                return executor.read(partial(launchers.answer, launcher, carried)) if answer is None else answer
            await executor.do_when_open(partial(launchers.note, launcher, carried))

    async def _weights(self, stream: str, query: bytes) -> bytes:
        asked = _Asked.model_validate({"stream": stream, **dict(parse_qsl(query.decode()))})
        held = WeightId(lineage=asked.lineage, version=asked.version)
        newer = partial(self._coordinator.weights.newer, asked.stream, held)
        return await self._executor.await_answer(Topic.WEIGHTS, newer, asked.wait) or b"null"


async def send_json(send: Send, status: int, body: bytes) -> None:
    """A whole answer."""
    headers = [_JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _body(receive: Receive) -> bytes:
    """Of a request, whole; of one that was cut off, what came."""
    parts, more = list[bytes](), True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
    return b"".join(parts)


OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Probes and scrapes carry no secret, and are answered with none."""


UNAUTHORIZED = 401


_HEADER = b"x-rljob-token"


class TokenGuard:
    """An ASGI application around another, which gets only what carries the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_given(scope):
            await self._app(scope, receive, send)
            return
        refused = bad_request("X-RLJob-Token is missing or wrong. Send the job's token.")
        await send_json(send, UNAUTHORIZED, refused.body)

    def _is_given(self, scope: Scope) -> bool:
        """Compared in constant time."""
        given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        return hmac.compare_digest(given, self._token)
