"""The coordinator's router: an endpoint is found by method and path, and what a request states wrongly is named."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import Field

from rljob_api.base import WireModel
from rljob_workers.dcs.coordinator.context import not_open
from rljob_workers.dcs.coordinator.router import Answer, Request, Router, TokenGuard, as_json

JSON = b"application/json"


class Stated(WireModel):
    """Fields of a body, or of a query."""

    number: int = Field(ge=0)
    kinds: list[str] = Field(default_factory=list)
    role: str = ""


def router() -> Router:
    async def keep(request: Request) -> Answer:
        return as_json(await request.stated(Stated, "body"))

    async def find(request: Request) -> Answer:
        return as_json(request.asked(Stated, "query", role=request.name))

    async def named(request: Request) -> Answer:
        return Answer(request.name.encode(), b"text/plain")

    async def closed(_: Request) -> Answer:
        raise not_open("Ask again.")

    made = Router()
    made.add("PUT", "/v1/kept", keep)
    made.add("GET", "/v1/kept", named)
    made.add("GET", "/v1/roles/{role}/first", find)
    made.add("GET", "/v1/kept/{name}", named)
    made.add("POST", "/v1/kept/{name}", keep)
    made.add("GET", "/v1/closed", closed)
    return made


def ask(
    method: str, target: str, body: bytes = b"", app: Any = None, token: bytes = b""
) -> tuple[int, bytes, bytes, Any]:
    """Status, content type, `allow` and body. The body of the request comes byte by byte."""
    path, _, query = target.partition("?")
    given = [(b"x-rljob-token", token)] if token else []
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": given}
    parts = [body[at : at + 1] for at in range(len(body))] or [b""]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run((app or router())(scope, receive, send))
    start, end = sent
    received = dict(start["headers"])
    assert received[b"content-length"] == str(len(end["body"])).encode()
    return start["status"], received[b"content-type"], received.get(b"allow", b""), end["body"]


def refusal(answer: tuple[int, bytes, bytes, bytes]) -> tuple[int, str, str]:
    assert answer[1] == JSON
    return answer[0], *json.loads(answer[3]).values()


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        pytest.param("GET", "/v1/kept", b"", id="a path"),
        pytest.param("GET", "/v1/kept/a", b"a", id="a path with a name"),
        pytest.param("GET", "/v1/kept/kept", b"kept", id="a name that the path has too"),
    ],
)
def test_an_endpoint_is_found_by_its_path(method: str, target: str, expected: bytes) -> None:
    assert ask(method, target) == (200, b"text/plain", b"", expected)


@pytest.mark.parametrize(
    "target",
    ["/", "/v1/keptx", "/v1/kept/", "/v1/kept/a/b", "/v1/roles//first", "/v1/roles/first", "/v1/roles/a/b/first"],
)
def test_a_path_without_an_endpoint_is_refused(target: str) -> None:
    status, reason, message = refusal(ask("GET", target))
    assert (status, reason) == (404, "NotFound")
    assert message == f"{target}: the coordinator has no such path. Use the rljob of its image."


def test_a_method_that_a_path_lacks_is_refused_with_those_that_it_has() -> None:
    answer = ask("DELETE", "/v1/kept")
    assert answer[2] == b"GET, PUT"
    sentence = "/v1/kept: takes GET, PUT, not DELETE. Use the rljob of the coordinator's image."
    assert refusal(answer) == (405, "BadRequest", sentence)


def test_a_body_is_read_whole() -> None:
    stated = Stated(number=1, kinds=["a"])
    assert ask("PUT", "/v1/kept", b'{"number": 1, "kinds": ["a"], "more": 2}') == (
        *(200, JSON, b""),
        stated.model_dump_json().encode(),
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{}", "body.number: Field required"),
        (b'{"number": -1}', "body.number: Input should be greater than or equal to 0"),
        (b'{"number": 1, "kinds": [1]}', "body.kinds.0: Input should be a valid string"),
        (b"[]", "body: Input should be an object"),
        (b"", "body: Invalid JSON: EOF while parsing a value at line 1 column 0"),
        (b"\xff", "body: Invalid JSON: expected value at line 1 column 1"),
        (b"[" * 3000, "body: Invalid JSON: recursion limit exceeded at line 1 column 202"),
    ],
    ids=["nothing", "a bound", "an entry", "a list", "empty", "no text", "nested"],
)
def test_what_a_body_states_wrongly_is_named(body: bytes, message: str) -> None:
    assert refusal(ask("PUT", "/v1/kept", body)) == (400, "BadRequest", message)


def test_a_query_has_the_last_of_a_value_and_all_of_a_list() -> None:
    answer = ask("GET", "/v1/roles/a%20b/first?number=1&number=%32&kinds=x&kinds=&role=other&unknown=1")
    assert json.loads(answer[3]) == {"number": 2, "kinds": ["x", ""], "role": "a%20b"}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "query.number: Field required"),
        ("number=", "query.number: Input should be a valid integer, unable to parse string as an integer"),
        ("number=-1", "query.number: Input should be greater than or equal to 0"),
        ("number=%ff", "query.number: Input should be a valid integer, unable to parse string as an integer"),
    ],
)
def test_what_a_query_asks_wrongly_is_named(query: str, message: str) -> None:
    assert refusal(ask("GET", f"/v1/roles/a/first?{query}")) == (400, "BadRequest", message)


def test_an_endpoint_that_refuses_is_answered_with_that() -> None:
    assert refusal(ask("GET", "/v1/closed")) == (503, "NotOpen", "Ask again.")


@pytest.mark.parametrize(
    ("target", "token", "status"),
    [
        ("/v1/kept", b"secret", 200),
        ("/v1/kept", b"wrong", 401),
        ("/v1/kept", b"", 401),
        ("/v1/nothing", b"", 401),
        ("/healthz", b"", 404),
        ("/metrics", b"wrong", 404),
    ],
)
def test_the_token_is_asked_for_but_by_probes(target: str, token: bytes, status: int) -> None:
    assert ask("GET", target, app=TokenGuard(router(), "secret"), token=token)[0] == status
