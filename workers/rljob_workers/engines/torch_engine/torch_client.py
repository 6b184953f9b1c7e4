"""The torch engine's client: `Engine` over its HTTP dialect, and its transport.

Used by ranks, through the backend. Torch-free and numpy-free, since the launcher imports it before its forks.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import orjson

from rljob_api.names import Lineage, WeightVersion
from rljob_api.spec.weights import Interruption
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import (
    Engine,
    EngineError,
    EngineGone,
    EngineRefused,
    EngineTimeout,
    Event,
    SamplingParams,
    Shown,
    sampling_fields,
)
from rljob_workers.engines.torch_engine import INCARNATION_HEADER
from rljob_workers.engines.torch_engine.replies import ReplyReader
from rljob_workers.models.weights import Weights, WeightSource, full_folder
from rljob_workers.sockets import is_readable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


_HTTP_OK = 200


_READ_BYTES = 1 << 20


_MAX_IDLE = 128
"""Connections that are retained for requests to come; more are opened where more requests run at once."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a reply."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, whatever its status."""

    body: Any
    """Parsed JSON, or the text where it is none."""
    incarnation: str | None
    """None: the reply does not name it."""
    refusal: str | None
    """The server's sentence where the status is not 200."""


@dataclass(frozen=True, slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def is_stale(self) -> bool:
        """Between two requests nothing may come: what is readable is the server's end of the connection."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        return self.reader.at_eof() or self.writer.is_closing() or is_readable(raw)

    def close(self) -> None:
        self.writer.close()


class Transport:
    """A pool of connections to one server; a request takes an idle one or opens another."""

    def __init__(self, url: str) -> None:
        """`url`: http://host:port. Nothing is opened yet."""
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise ValueError(f"engine_url: {url!r} is not of the form http://host:port.")
        self.url = url
        self._address = (parts.hostname, parts.port)
        self._idle: list[_Connection] = []

    async def replies(self, method: str, path: str, body: object | None) -> AsyncGenerator[Reply]:
        """Sends one request and reads its reply, or each line of one that comes in lines of JSON, as it comes.

        A failed one is never sent again: the server may be working on it.
        """
        what = f"{method} {path} of the engine at {self.url}"
        async with self._exchange(what) as connection:
            await self._send(connection, method, path, body)
            head = await _read_head(connection.reader)
            incarnation = head.headers.get(INCARNATION_HEADER)
            if "content-length" not in head.headers:
                async for line in _read_lines(connection.reader):
                    yield Reply(orjson.loads(line), incarnation, None)
                return
            parsed = _parse(await connection.reader.readexactly(int(head.headers["content-length"])))
        is_refused = head.status != _HTTP_OK
        refusal = f"{what} was refused with {head.status}: {_sentence(parsed)}" if is_refused else None
        yield Reply(parsed, incarnation, refusal)

    def close(self) -> None:
        """Closes idle connections."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @asynccontextmanager
    async def _exchange(self, what: str) -> AsyncIterator[_Connection]:
        """A connection for one request and its reply; pooled if both came through."""
        connection: _Connection | None = None
        try:
            connection = await self._take()
            yield connection
        except (OSError, EOFError, ValueError, KeyError) as error:
            if connection is not None:
                connection.close()
            raise EngineGone(
                f"{what} broke off ({type(error).__name__}: {error}); the server died or was replaced."
            ) from error
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        if len(self._idle) < _MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    async def _take(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_stale():
                return connection
            connection.close()
        reader, writer = await asyncio.open_connection(*self._address, limit=_READ_BYTES)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _Connection(reader, writer)

    async def _send(self, connection: _Connection, method: str, path: str, body: object | None) -> None:
        payload = b"" if body is None else orjson.dumps(body)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._address[0]}:{self._address[1]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        connection.writer.write(head.encode("ascii") + payload)
        await connection.writer.drain()


async def _read_head(reader: asyncio.StreamReader) -> Head:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, status, *_ = lines[0].split(" ")
    if not version.startswith("HTTP/"):
        raise ValueError(f"{lines[0]!r} is no status line")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return Head(int(status), {name.strip().lower(): value.strip() for name, _, value in pairs})


async def _read_lines(reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    """Lines of a body in chunks. What the last one has no end of is none: its server died."""
    rest = b""
    while chunk := await _read_chunk(reader):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        raise EOFError("the last line has no end")


async def _read_chunk(reader: asyncio.StreamReader) -> bytes:
    """One chunk of a body, empty at its end."""
    size = int((await reader.readuntil(b"\r\n")).strip(), 16)
    return (await reader.readexactly(size + 2))[:-2]


def _parse(raw: bytes) -> Any:  # noqa: ANN401 (JSON)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw.decode("utf-8", "replace")


def _sentence(body: object) -> str:
    """The message of an error body, in either of the shapes that the server uses."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    return str(inner.get("message", inner)) if isinstance(inner, dict) else str(inner)[:500]


_PROGRESS_SECONDS = 0.5
"""How often the server counts the tokens of a request that is not answered."""


_CONTROL_SECONDS = 60.0
"""For calls that the base gives no deadline: an engine that only just starts answers them from its backlog."""


@dataclass(frozen=True, slots=True)
class _ServerInfo:
    """What a server reports of itself."""

    incarnation: str | None
    held: WeightId | None


class TorchEngineClient(Engine):
    """Client of one server.

    engine = TorchEngineClient("http://127.0.0.1:30000")
    await engine.update_weights(Folder(folder), weight, Interruption.RETRACT, deadline=...)
    async for event in engine.generate(prompts, params): ...
    """

    prompts_per_request: ClassVar[int | None] = None

    def __init__(self, url: str) -> None:
        """Nothing is sent yet: the server may still be starting."""
        self._transport = Transport(url)
        self._known: _ServerInfo | None = None
        """Of the server that was last asked; its `held` may be outdated. Forgotten when another incarnation answers."""

    async def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        """See `Engine.generate`."""
        asked = await self._info(time.monotonic() + _CONTROL_SECONDS)
        reader = ReplyReader(sum(one.num_samples for one in params))
        replies = self._replies(asked, "POST", "/generate", _generate_body(prompts, params, shown))
        async with aclosing(replies):
            async for reply in replies:
                if "error" in reply.body:
                    raise EngineRefused(
                        f"POST /generate of the engine at {self._transport.url} ended with "
                        f"{reply.body['error']['status']}: {reply.body['error']['message']}"
                    )
                for event in reader.events(reply.body):
                    yield event
        reader.require_all()

    async def update_weights(
        self, weights: Weights[WeightSource], interruption: Interruption, *, deadline: float
    ) -> None:
        """See `Engine.update_weights`. After an error the pause ends too: the server refuses by itself."""
        folder = full_folder(weights.source, "An engine of kind Torch")
        asked = await self._info(deadline)
        try:
            await self._control(asked, "/pause_generation", {"mode": _PAUSE_MODES[interruption]}, deadline)
            await self._control(asked, "/update_weights_from_disk", _update_body(folder, weights.id), deadline)
        except EngineGone:
            raise
        except BaseException:
            # With time of its own, also where the caller gave up: the server must not stay paused.
            with suppress(EngineError):  # the error that led here has the cause
                await asyncio.shield(
                    self._control(asked, "/continue_generation", {}, time.monotonic() + _CONTROL_SECONDS)
                )
            raise
        await self._control(asked, "/continue_generation", {}, deadline)

    async def score(self, tokens: Sequence[int], *, deadline: float) -> list[float]:
        """See `Engine.score`."""
        asked = await self._info(deadline)
        reply = await self._within(deadline, asked, "POST", "/score_tokens", {"input_ids": list(tokens)})
        return [float(value) for value in reply.body["log_probs"]]

    async def held(self) -> WeightId | None:
        """See `Engine.held`. Always asks the server: only so is a server noticed that came back empty."""
        return (await self._ask_info(time.monotonic() + _CONTROL_SECONDS)).held

    async def max_tokens(self) -> int:
        """See `Engine.max_tokens`."""
        return int((await self._server_info())["context_length"])

    async def capacity(self) -> int:
        """See `Engine.capacity`."""
        return int((await self._server_info())["max_running_requests"])

    async def abort_all(self) -> None:
        """See `Engine.abort_all`. Also ends a pause that a rank left behind when it died."""
        deadline = time.monotonic() + _CONTROL_SECONDS
        asked = await self._ask_info(deadline)
        # Paused first, so that nothing starts to run between the abort and the flush, which would be refused.
        await self._control(asked, "/pause_generation", {"mode": "abort"}, deadline)
        await self._control(asked, "/abort_request", {"abort_all": True}, deadline)
        await self._control(asked, "/flush_cache", {}, deadline)
        await self._control(asked, "/continue_generation", {}, deadline)

    async def close(self) -> None:
        """Closes idle connections."""
        self._transport.close()

    async def _server_info(self) -> dict[str, Any]:
        deadline = time.monotonic() + _CONTROL_SECONDS
        reply = await self._within(deadline, await self._info(deadline), "GET", "/get_server_info", None)
        body: dict[str, Any] = reply.body
        return body

    async def _control(self, asked: _ServerInfo, path: str, body: object, deadline: float) -> None:
        await self._within(deadline, asked, "POST", path, body)

    async def _info(self, deadline: float) -> _ServerInfo:
        """What is known of the server; asks if nothing is."""
        return self._known or await self._ask_info(deadline)

    async def _ask_info(self, deadline: float) -> _ServerInfo:
        info = _read_info(await self._within(deadline, None, "GET", "/get_model_info", None))
        self._known = info
        return info

    async def _within(self, deadline: float, asked: _ServerInfo | None, method: str, path: str, body: object) -> Reply:
        """As `_ask`, until a deadline in monotonic seconds."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await self._ask(asked, method, path, body)
        except TimeoutError as error:
            raise EngineTimeout(
                f"{method} {path} of the engine at {self._transport.url} was not answered within the deadline."
            ) from error

    async def _ask(self, asked: _ServerInfo | None, method: str, path: str, body: object) -> Reply:
        """One request with one reply."""
        async with aclosing(self._replies(asked, method, path, body)) as replies:
            return await anext(replies)

    async def _replies(self, asked: _ServerInfo | None, method: str, path: str, body: object) -> AsyncGenerator[Reply]:
        """One request to the server that `asked` describes (None: to any incarnation), and the lines of its reply."""
        try:
            async with aclosing(self._transport.replies(method, path, body)) as replies:
                async for reply in replies:
                    self._require(asked, reply)
                    yield reply
        except EngineGone:
            self._known = None
            raise

    def _require(self, asked: _ServerInfo | None, reply: Reply) -> None:
        if asked is not None and reply.incarnation != asked.incarnation:
            raise EngineGone(
                f"The engine at {self._transport.url} is another one: incarnation {reply.incarnation} answered, "
                f"{asked.incarnation} was asked. Its reply does not count."
            )
        if reply.refusal is not None:
            raise EngineRefused(reply.refusal)


_PAUSE_MODES = {Interruption.RETRACT: "retract", Interruption.IN_PLACE: "in_place", Interruption.DRAIN: "drain"}
"""As the dialect names them."""


def _read_info(reply: Reply) -> _ServerInfo:
    version, lineage = reply.body["weight_version"], reply.body["lineage"]
    held = None
    if version is not None:
        held = WeightId(lineage=Lineage(int(lineage)), version=WeightVersion(int(version)))
    return _ServerInfo(reply.incarnation, held)


def _update_body(folder: Path, weight: WeightId) -> dict[str, Any]:
    return {"model_path": str(folder), "weight_version": str(weight.version), "lineage": weight.lineage}


def _generate_body(prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown) -> dict[str, Any]:
    return {
        "input_ids": [list(prompt) for prompt in prompts],
        "sampling_params": [_sampling_body(one) for one in params],
        "return_logprob": True,
        "compact": True,
        "progress_seconds": _PROGRESS_SECONDS,
        **({"progress_tokens": True} if shown is Shown.TOKENS else {}),
    }


def _sampling_body(params: SamplingParams) -> dict[str, Any]:
    return {"n": params.num_samples, "sampling_seed": params.seed, **sampling_fields(params)}
