"""The coordinator's router: an ASGI application that finds the endpoint of a request by its method and path.

`app` and `hot_routes` add endpoints. What a request states is checked by models of pydantic; a problem is refused with
its place. `TokenGuard` stands in front. Decides nothing.
"""

from __future__ import annotations

import hmac
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import parse_qs

from pydantic import ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from rljob_api.base import ApiModel
from rljob_workers.dcs.coordinator.context import Refused, bad_request, invalid, not_found

M = TypeVar("M", bound=ApiModel)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    body: bytes
    content_type: bytes = b"application/json"
    status: int = 200
    allow: bytes = b""
    """Methods that the path has, where the request's is none of them."""


NOTHING = Answer(b"null")
"""The answer to a request that is carried out, and asks for nothing."""


def as_json(model: ApiModel | None) -> Answer:
    """A model as its JSON; null where there is none."""
    return NOTHING if model is None else Answer(model.model_dump_json().encode())


@dataclass(frozen=True, slots=True)
class Request:
    """A request that has an endpoint."""

    name: str
    """The part of the path that stands for `{...}`; empty where the path has none."""
    query: bytes
    receive: Receive

    async def stated(self, kind: type[M], *place: str) -> M:
        """Reads the body; `place` stands before the names of fields in a refusal."""
        try:
            return kind.model_validate_json(await read_body(self.receive))
        except ValidationError as error:
            raise invalid(error.errors(include_url=False), place) from None

    def asked(self, kind: type[M], *place: str, **path: str) -> M:
        """Reads the query, and fields that stand in the path; `place` as in `stated`.

        The last value of a repeated name counts, all of them where the field is a list.
        """
        stated: dict[str, object] = {**path}
        for name, values in parse_qs(self.query.decode(errors="replace"), keep_blank_values=True).items():
            field = kind.model_fields.get(name)
            stated.setdefault(name, values if field is not None and field.annotation == list[str] else values[-1])
        try:
            return kind.model_validate(stated)
        except ValidationError as error:
            raise invalid(error.errors(include_url=False), place) from None


Endpoint = Callable[[Request], Awaitable[Answer]]


class Router:
    """The endpoints by path and method.

    router.add("GET", "/v1/replicas/{pod_uid}", replica)      # request.name is the pod's uid
    """

    def __init__(self) -> None:
        self._fixed: defaultdict[str, dict[str, Endpoint]] = defaultdict(dict)
        self._named: defaultdict[tuple[str, str], dict[str, Endpoint]] = defaultdict(dict)
        """By the parts of a path before and behind its name."""

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        """Adds an endpoint. A path has at most one `{name}`, which stands for a text without a slash."""
        before, named, rest = path.partition("{")
        endpoints = self._named[before, rest.partition("}")[2]] if named else self._fixed[path]
        endpoints[method] = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        method, path = scope["method"], scope["path"]
        name, endpoints = self._found(path)
        endpoint = endpoints.get(method)
        try:
            if endpoint is None:
                answer = _without_endpoint(method, path, endpoints)
            else:
                answer = await endpoint(Request(name, scope["query_string"], receive))
        except Refused as refused:
            answer = Answer(refused.body, status=refused.status)
        await send_answer(send, answer)

    def _found(self, path: str) -> tuple[str, Mapping[str, Endpoint]]:
        if path in self._fixed:
            return "", self._fixed[path]
        for (before, behind), endpoints in self._named.items():
            name = path[len(before) : len(path) - len(behind)]
            if name and "/" not in name and path == f"{before}{name}{behind}":
                return name, endpoints
        return "", {}


def _without_endpoint(method: str, path: str, endpoints: Mapping[str, Endpoint]) -> Answer:
    if not endpoints:
        raise not_found(f"{path}: the coordinator has no such path. Use the rljob of its image.")
    allowed = ", ".join(sorted(endpoints))
    refused = bad_request(f"{path}: takes {allowed}, not {method}. Use the rljob of the coordinator's image.")
    return Answer(refused.body, status=NOT_ALLOWED, allow=allowed.encode())


async def send_answer(send: Send, answer: Answer) -> None:
    """Sends all of it."""
    headers = [(b"content-type", answer.content_type), (b"content-length", b"%d" % len(answer.body))]
    if answer.allow:
        headers.append((b"allow", answer.allow))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def read_body(receive: Receive) -> bytes:
    """The body of a request, whole; of one that was cut off, what came."""
    parts, more = list[bytes](), True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
    return b"".join(parts)


OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Probes and scrapes carry no secret, and are answered with none."""


UNAUTHORIZED = 401


NOT_ALLOWED = 405


_HEADER = b"x-rljob-token"


class TokenGuard:
    """An ASGI application around another, which gets only what carries the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes one request on, or refuses it."""
        if scope["path"] in OPEN_PATHS or self._is_given(scope):
            await self._app(scope, receive, send)
            return
        refused = bad_request("X-RLJob-Token is missing or wrong. Send the job's token.")
        await send_answer(send, Answer(refused.body, status=UNAUTHORIZED))

    def _is_given(self, scope: Scope) -> bool:
        """Compares in constant time."""
        given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        return hmac.compare_digest(given, self._token)
