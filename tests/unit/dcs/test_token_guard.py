"""Nothing but probes and scrapes comes through without the job's token."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rljob_workers.dcs.coordinator.router import OPEN_PATHS, UNAUTHORIZED, TokenGuard


class Guarded:
    """An application behind the guard, and a client of it."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self._statuses: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append(scope["path"])

    async def _receive(self) -> Any:
        return {"type": "http.request"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._statuses.append(message["status"])

    def ask(self, path: str, headers: list[tuple[bytes, bytes]]) -> int | None:
        """The status of a refusal; None where the application was reached."""
        scope = {"type": "http", "path": path, "headers": headers}
        asyncio.run(TokenGuard(self, "secret")(scope, self._receive, self._send))
        return self._statuses[-1] if self._statuses else None


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([], id="no token"),
        pytest.param([(b"x-rljob-token", b"")], id="an empty one"),
        pytest.param([(b"x-rljob-token", b"secre")], id="the beginning of it"),
        pytest.param([(b"x-rljob-token", b"secrets")], id="more than it"),
        pytest.param([(b"authorization", b"secret")], id="in another header"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/status", "/v1/ranks/beat", "/v1/epoch"])
def test_a_request_without_the_token_reaches_nothing(path: str, headers: list[tuple[bytes, bytes]]) -> None:
    guarded = Guarded()
    assert guarded.ask(path, headers) == UNAUTHORIZED
    assert guarded.reached == []


def test_the_token_and_probes_come_through() -> None:
    guarded = Guarded()
    assert guarded.ask("/v1/status", [(b"accept", b"*/*"), (b"x-rljob-token", b"secret")]) is None
    assert [guarded.ask(path, []) for path in sorted(OPEN_PATHS)] == [None] * len(OPEN_PATHS)
    assert guarded.reached == ["/v1/status", *sorted(OPEN_PATHS)]
