"""Informers: list and watch of one kind with resumption, and the census that finds what a watch has missed.

Objects go to the cache. A broken watch is restarted with backoff; the census compares uids of a plain list with the
cache once a minute.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence

import aiohttp
import orjson

from rljob_operator.kube.api import METADATA_ONLY, Api, Json
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.errors import ApiGone, ApiNotFound, ApiRefused, ApiUnreachable
from rljob_operator.kube.kinds import RLJOBS, Resource
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.responses import decoded
from rljob_operator.kube.views import JobKey
from rljob_operator.rate_limit import backoff_seconds

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


class Informer:
    """One kind of objects, in one namespace or in all."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        namespace: str | None,
        selector: str,
        cache: Cache,
        metrics: Metrics,
        *,
        metadata_only: bool = False,
    ) -> None:
        self._api = api
        self._resource = resource
        self._namespace = namespace
        self._selector = selector
        self._cache = cache
        self._metrics = metrics
        self._metadata_only = metadata_only
        self._alive_at = time.monotonic()
        self.synced = asyncio.Event()
        """Set once everything was listed."""

    @property
    def name(self) -> str:
        """Which watch this is, for logs and conditions."""
        return self._resource.plural + (f" in {self._namespace}" if self._namespace else "")

    @property
    def resource(self) -> Resource:
        """What is watched."""
        return self._resource

    def age(self) -> float:
        """Seconds since the last answer or line of the stream."""
        return time.monotonic() - self._alive_at

    async def run(self) -> None:
        """Until cancelled. Watches that end without an event are repeated with a backoff, however they end."""
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
        version = ""
        query = {"labelSelector": self._selector}
        async for page in _pages(self._api, self._resource, self._namespace, query, self._accept("List")):
            self._alive_at = time.monotonic()
            objects += page["items"] or ()
            version = page["metadata"]["resourceVersion"]
        self._cache.replace(self._resource.kind, self._namespace, objects)
        self.synced.set()
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
                        self._cache.put(self._resource.kind, raw)
                    case "DELETED":
                        self._cache.drop(self._resource.kind, raw)
                    case "ERROR":
                        code = raw.get("code", 0)
                        raise _error(f"watch {self.name}", code, raw.get("reason", ""), raw.get("message", ""))
                yield raw["metadata"]["resourceVersion"]

    def _accept(self, suffix: str) -> str:
        return METADATA_ONLY.format(list=suffix) if self._metadata_only else ""


async def _pages(
    api: Api, resource: Resource, namespace: str | None, query: Mapping[str, str], accept: str
) -> AsyncIterator[Json]:
    """A list, a page at a time."""
    rest = {**query, "limit": str(PAGE)}
    while True:
        page = await api.list(resource, namespace, rest, accept)
        yield page
        token = page["metadata"].get("continue")
        if not token:
            return
        rest["continue"] = token


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


PERIOD_SECONDS = 60.0
"""Between two counts: a job whose deletion was missed may go on for so long."""


class Census:
    """Counts the RLJobs of some namespaces, or of all."""

    def __init__(self, api: Api, cache: Cache, namespaces: Sequence[str]) -> None:
        self._api = api
        self._cache = cache
        self._namespaces: list[str | None] = [*namespaces] or [None]
        self._counted_at = time.monotonic()
        self.synced = asyncio.Event()
        self.synced.set()  # the watch makes the beginning

    @property
    def name(self) -> str:
        """What is counted, for logs."""
        return RLJOBS.plural

    @property
    def resource(self) -> Resource:
        """What is counted."""
        return RLJOBS

    def age(self) -> float:
        """Seconds since the last count."""
        return time.monotonic() - self._counted_at

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS * random.uniform(0.8, 1.0))
            try:
                for namespace in self._namespaces:
                    await self.count(namespace)
            except (ApiRefused, ApiUnreachable) as error:
                _log.warning("the RLJobs were not counted: %s", error)
            else:
                self._counted_at = time.monotonic()

    async def count(self, namespace: str | None) -> None:
        """Drops what is gone, and reads what the cache has an older version of, or does not have."""
        known = self._cache.jobs_known()  # before the list: what comes later is not in it
        pages = _pages(self._api, RLJOBS, namespace, {}, METADATA_ONLY.format(list="List"))
        listed = [item["metadata"] async for page in pages for item in page["items"] or ()]
        uids = {metadata["uid"] for metadata in listed}
        for key, uid in known.items():
            if uid not in uids and namespace in (None, key.namespace):
                _log.warning("%s is gone, which its watch did not report", key)
                self._cache.drop_job({"metadata": {"namespace": key.namespace, "name": key.name, "uid": uid}})
        for metadata in listed:
            key = JobKey(metadata["namespace"], metadata["name"])
            if self._is_behind(key, metadata):
                await self._read(key)

    def _is_behind(self, key: JobKey, metadata: Json) -> bool:
        known = self._cache.job(key)
        return known is None or int(known["metadata"]["resourceVersion"]) < int(metadata["resourceVersion"])

    async def _read(self, key: JobKey) -> None:
        try:
            self._cache.put_job(await self._api.get(RLJOBS, key.namespace, key.name))
        except ApiNotFound:
            return
