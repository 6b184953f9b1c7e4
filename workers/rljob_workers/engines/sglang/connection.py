"""HTTP to one SGLang server: JSON calls with a deadline, and a stream of events that ends with its reader.

Used by the client only, in one event loop. What breaks becomes EngineGone (EngineAway where it was never connected), a
refusal EngineRefused with the server's sentence, a deadline EngineTimeout. No request is ever sent again here: the
server may be working on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import aiohttp
import orjson

from rljob_workers.engines.errors import EngineAway, EngineGone, EngineRefused, EngineTimeout

_HTTP_OK = 200
_DATA = b"data: "
_END = b"[DONE]"

_KEEP_ALIVE_SECONDS = 2.0
"""SGLang closes a connection that was idle for 5 s: a request on one that it just closes would look like a death."""


class Connection:
    """Connections to one server, as many as there are requests; idle ones are used again."""

    def __init__(self, url: str) -> None:
        """`url`: http://host:port. Nothing is opened before the first call."""
        self.url = url.rstrip("/")
        self._opened: aiohttp.ClientSession | None = None

    async def get(self, path: str, *, deadline: float) -> Any:  # noqa: ANN401 (JSON)
        """The reply to a question; JSON, or text where it is none."""
        return await self._call("GET", path, None, deadline)

    async def post(self, path: str, body: Mapping[str, Any], *, deadline: float) -> Any:  # noqa: ANN401 (JSON)
        """The reply to an order. SGLang wants a JSON body for each, empty or not."""
        return await self._call("POST", path, body, deadline)

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Any]:
        """The events of a reply, as they come. Who stops reading closes the connection, which aborts the request.

        It has no deadline; who waits for it cancels.
        """
        what = f"POST {path}"
        with self._translated(what):
            async with self._session().post(self.url + path, data=orjson.dumps(body)) as response:
                if response.status != _HTTP_OK:
                    raise self._refusal(what, response.status, await response.read())
                async for event in _events(response.content):
                    if isinstance(event, dict) and "error" in event:  # with status 200: the stream had begun
                        raise self._refusal(what, response.status, orjson.dumps(event))
                    yield event

    async def close(self) -> None:
        """Closes all connections, which aborts what runs on them."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None, deadline: float) -> Any:  # noqa: ANN401
        what = f"{method} {path}"
        data = None if body is None else orjson.dumps(body)
        try:
            with self._translated(what):
                async with (
                    asyncio.timeout(max(0.0, deadline - time.monotonic())),
                    self._session().request(method, self.url + path, data=data) as response,
                ):
                    raw = await response.read()
        except TimeoutError as error:
            raise EngineTimeout(f"{what} of the engine at {self.url} was not answered within the deadline.") from error
        if response.status != _HTTP_OK:
            raise self._refusal(what, response.status, raw)
        return _parsed(raw)

    def _session(self) -> aiohttp.ClientSession:
        """Made in the loop that uses it."""
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None),
                headers={"Content-Type": "application/json"},
            )
        return self._opened

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except aiohttp.ClientConnectorError as error:
            raise EngineAway(f"{what}: nobody listens at {self.url}; the engine is being started.") from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise EngineGone(
                f"{what} of the engine at {self.url} broke off ({type(error).__name__}: {error}); the server died or "
                "was replaced."
            ) from error

    def _refusal(self, what: str, status: object, raw: bytes) -> EngineRefused:
        return EngineRefused(f"{what} of the engine at {self.url} was refused with {status}: {sentence_of(raw)}")


def sentence_of(raw: bytes) -> str:
    """What a body says of an error, in any of the shapes that SGLang's endpoints have."""
    body = _parsed(raw)
    inner = body.get("error", body) if isinstance(body, dict) else body
    return str(inner.get("message", inner)) if isinstance(inner, dict) else str(inner).strip()[:500]


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Any]:
    """The JSON behind each `data: ` line. Lines may be of any length: those of a long prompt's log-probs are."""
    pending: list[bytes] = []
    async for piece in content.iter_any():
        *lines, rest = piece.split(b"\n")
        for line in lines:
            whole = b"".join((*pending, line))
            pending.clear()
            if whole.startswith(_DATA) and whole[len(_DATA) :] != _END:
                yield orjson.loads(whole[len(_DATA) :])
        if rest:
            pending.append(rest)


def _parsed(raw: bytes) -> Any:  # noqa: ANN401 (JSON)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw.decode("utf-8", "replace")
