"""HTTP to one SGLang server: calls with a deadline, streams of events, and what the server states about itself.

Used by the client and by updates. Facts are read once per incarnation, from `/openapi.json`: versions differ in
endpoints and fields. A server that lacks what RLJob needs is refused by name.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from rljob_workers.engines.base import EngineAway, EngineGone, EngineRefused, EngineTimeout
from rljob_workers.engines.incarnation import read_identity
from rljob_workers.engines.sglang.model_folder import Shapes, model_shapes


@dataclass(frozen=True, slots=True)
class IncarnationFile:
    """The file that the launcher replaces before each start."""

    path: Path | None
    """None: there is none."""
    url: str

    def read(self) -> str | None:
        """The incarnation that serves now; EngineGone where none was started yet."""
        return None if self.path is None else read_identity(self.path).incarnation

    def require(self, asked: str | None) -> None:
        """EngineGone where another incarnation than `asked` serves now."""
        found = self.read()
        if found != asked:
            raise EngineGone(
                f"The engine at {self.url} is another one: {asked} was asked, and now {found} serves. Nothing that it "
                "answered counts."
            )


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
    """The error message of a body, in any of the shapes that SGLang's endpoints have."""
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


PATHS = (
    "/abort_request",
    "/continue_generation",
    "/flush_cache",
    "/generate",
    "/model_info",
    "/pause_generation",
    "/update_weight_version",
    "/update_weights_from_disk",
)


FIELDS = {
    "GenerateReqInput": ("extra_key", "input_ids", "logprob_start_len", "return_logprob", "stream"),
    "UpdateWeightFromDiskReqInput": ("flush_cache", "load_format", "model_path"),
    "UpdateWeightVersionReqInput": ("abort_all_requests", "new_version"),
}


PAUSE_MODES = ("in_place", "retract")
"""What this client asks for."""


_RESERVED_FOR_OUTPUT = 5
"""Tokens of the context that SGLang lets no prompt have. It also makes one token less than the context has room for."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Of one incarnation."""

    incremental: bool
    """A stream has each token once."""
    seeds: bool
    """It heeds seeds: `--enable-deterministic-inference`."""
    capacity: int
    """Samples that it runs at once."""
    max_tokens: int
    """Of prompt and output together. More is cut off silently."""
    vocab_size: int
    """A token beyond it kills the server."""
    shapes: Shapes
    """The tensors that an update must have. A wrong shape kills the server, a wrong name is passed over."""


async def ask_facts(connection: Connection, *, deadline: float) -> ServerFacts:
    """Asks; EngineRefused, with a sentence, where the server is none that this client can drive."""
    described = await connection.get("/openapi.json", deadline=deadline)
    info = await connection.get("/server_info", deadline=deadline)
    version = str(info.get("version"))
    lacking = missing_parts(described)
    if lacking:
        raise EngineRefused(
            f"The engine at {connection.url} is SGLang {version}, which lacks {', '.join(lacking)}. Use 0.5.23."
        )
    folder = Path(info["model_path"])  # of its start: what /model_info names is the folder of the last update
    state = info["internal_states"][0]
    return ServerFacts(
        incremental=bool(info.get("incremental_streaming_output")),
        seeds=bool(info.get("enable_deterministic_inference")),
        capacity=int(state.get("effective_max_running_requests_per_dp") or info["max_running_requests"]),
        max_tokens=int(info["max_req_input_len"]) + _RESERVED_FOR_OUTPUT - 1,
        vocab_size=_vocabulary(folder, connection.url),
        shapes=model_shapes(folder),
    )


def missing_parts(described: Mapping[str, Any]) -> list[str]:
    """What of the endpoints and fields that we need `/openapi.json` does not know. Pure."""
    schemas = described.get("components", {}).get("schemas", {})
    missing = [path for path in PATHS if path not in described.get("paths", {})]
    for name, fields in FIELDS.items():
        known = schemas.get(name, {}).get("properties", {})
        missing += [f"{field} of {name}" for field in fields if field not in known]
    modes = schemas.get("PauseGenerationReqInput", {}).get("properties", {}).get("mode", {}).get("enum", ())
    return missing + [f"the pause mode {mode}" for mode in PAUSE_MODES if mode not in modes]


def _vocabulary(folder: Path, url: str) -> int:
    try:
        described = json.loads((folder / "config.json").read_bytes())
        return int(described.get("text_config", described)["vocab_size"])
    except (OSError, ValueError, KeyError) as error:
        raise EngineRefused(
            f"The engine at {url} serves the model of {folder}, whose config.json tells no vocabulary ({error}). A"
            " token beyond it would kill the server. Start it with a folder of this machine."
        ) from error
