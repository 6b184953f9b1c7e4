"""The informer: lists a kind of objects and then watches it, for ever. Only those with a label are sent at all.

kopf's own watches serve the RLJobs. They do not serve what jobs are made of: after a gap they tell nothing of objects
that were deleted in it, they cost several times the CPU for each of very many pod events, and they do not say how old
their last sign of life is.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from typing import Protocol

import aiohttp
import orjson

from rljob_operator.adapters.api import METADATA_ONLY, Api, Json
from rljob_operator.adapters.backoff import backoff_seconds
from rljob_operator.adapters.decoding import decoded
from rljob_operator.adapters.errors import ApiGone, ApiRefused, ApiUnreachable
from rljob_operator.adapters.metrics import Metrics
from rljob_operator.adapters.resources import Resource

PAGE = 500
"""Objects a page of the first list: more would be a peak of memory here and there."""

SERVER_SECONDS = 300
"""How long the API server holds a watch before it ends it. An integer: it takes no other."""

SILENCE_SECONDS = 100.0
"""The API server sends a bookmark about once a minute: a stream that is silent for longer is dead."""

RETRY_SECONDS = (0.2, 30.0)

_TROUBLE = (ApiRefused, ApiUnreachable, aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError)
"""After any of these the watch goes on from the version that it has reached."""

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Where objects go."""

    def replace(self, namespace: str | None, objects: list[Json]) -> None:
        """These are all there are (in this namespace)."""
        ...

    def put(self, raw: Json) -> None:
        """A version of an object."""
        ...

    def drop(self, raw: Json) -> None:
        """The last version of an object that is gone."""
        ...


class Informer:
    """One kind of objects, in one namespace or in all."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        namespace: str | None,
        selector: str,
        sink: Sink,
        metrics: Metrics,
        *,
        metadata_only: bool = False,
    ) -> None:
        self._api = api
        self._resource = resource
        self._namespace = namespace
        self._selector = selector
        self._sink = sink
        self._metrics = metrics
        self._metadata_only = metadata_only
        self._alive_at = time.monotonic()
        self.synced = asyncio.Event()
        """Set once everything was listed."""

    @property
    def name(self) -> str:
        """Which watch this is, in words."""
        return self._resource.plural + (f" in {self._namespace}" if self._namespace else "")

    @property
    def resource(self) -> Resource:
        """What is watched."""
        return self._resource

    def age(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self._alive_at

    async def run(self) -> None:
        """Until cancelled. Watches that tell nothing before they end, however they end, come later and later."""
        fruitless = 0
        version = ""
        while True:
            cause = "ended"
            try:
                if not version:
                    version = await self._list()
                async for reached in self._watch(version):
                    version, fruitless = reached, 0
            except ApiGone:
                cause, version = "gone", ""
            except _TROUBLE as error:
                cause = type(error).__name__
                _log.warning("watch of %s: %s", self.name, str(error) or cause)
            self._metrics.watch_restarts.labels(self._resource.plural, cause).inc()
            fruitless += 1
            # Jittered, so that not all watches of all replicas come back at the same moment.
            await asyncio.sleep(backoff_seconds(fruitless, *RETRY_SECONDS) * random.uniform(0.5, 1.0))

    async def _list(self) -> str:
        objects: list[Json] = []
        query = {"labelSelector": self._selector, "limit": str(PAGE)}
        while True:
            page = await self._api.list(self._resource, self._namespace, query, self._accept("List"))
            self._alive_at = time.monotonic()
            objects += page["items"] or ()
            token = page["metadata"].get("continue")
            if not token:
                break
            query["continue"] = token
        self._sink.replace(self._namespace, objects)
        self.synced.set()
        version: str = page["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str) -> AsyncIterator[str]:
        """Hands on what happens and yields the version reached, so that the next watch goes on from there."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": self._selector,
            "resourceVersion": version,
            "timeoutSeconds": str(SERVER_SECONDS),
        }
        async with self._api.watch(self._resource, self._namespace, query, self._accept(""), SILENCE_SECONDS) as stream:
            self._alive_at = time.monotonic()
            async for line in _lines(stream):
                self._alive_at = time.monotonic()
                event = decoded(line)
                raw = event["object"]
                match event["type"]:
                    case "ADDED" | "MODIFIED":
                        self._sink.put(raw)
                    case "DELETED":
                        self._sink.drop(raw)
                    case "ERROR":
                        code = raw.get("code", 0)
                        raise _error(f"watch {self.name}", code, raw.get("reason", ""), raw.get("message", ""))
                yield raw["metadata"]["resourceVersion"]

    def _accept(self, suffix: str) -> str:
        return METADATA_ONLY.format(list=suffix) if self._metadata_only else ""


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length: the reader's own `readline` refuses long ones."""
    rest = b""
    async for chunk in stream.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


def _error(what: str, code: int, reason: str, message: str) -> ApiRefused:
    kind = ApiGone if code == 410 else ApiRefused
    return kind(what, code, reason, message)
