"""Informers: list and watch of one kind with resumption, and the census that finds what a watch has missed.

Objects go to the cache. A broken watch is restarted with backoff; the census compares uids of a plain list with the
cache once a minute, and when the RLJobs were listed anew.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import aiohttp
import orjson

from rljob_operator.kube.api import METADATA_ONLY, Api, Json
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.errors import ApiGone, ApiNotFound, ApiRefused, ApiUnreachable
from rljob_operator.kube.kinds import RLJOBS, Resource
from rljob_operator.kube.operator_metrics import Metrics
from rljob_operator.kube.responses import decoded
from rljob_operator.kube.views import JobKey
from rljob_operator.kube.watch_state import WatchState
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
        self.state = WatchState(f"the watch of {resource.plural}{_within(namespace)}", resource.plural)
        self.synced = asyncio.Event()
        """Set once everything was listed."""

    async def run(self) -> None:
        """Until cancelled. Watches that end without an event are repeated with a backoff, however they end."""
        self.state.begin()
        fruitless = 0
        version = ""
        while True:
            cause = "ended"
            try:
                if not version:
                    version = await self._list()
                async for reached in self._watch(version):
                    version, fruitless = reached, 0
                self.state.ended()
            except ApiGone:
                cause, version = "gone", ""
                self.state.ended()
            except _TROUBLE as error:
                cause = type(error).__name__
                self.state.broke(error)
            self._metrics.watch_restarts.labels(self._resource.plural, cause).inc()
            fruitless += 1
            # Jittered, so that not all watches of all replicas come back at the same moment.
            await asyncio.sleep(backoff_seconds(fruitless, *RETRY_SECONDS) * random.uniform(0.5, 1.0))

    async def _list(self) -> str:
        objects: list[Json] = []
        version = ""
        query = {"labelSelector": self._selector}
        async for page in _pages(self._api, self._resource, self._namespace, query, self._accept("List")):
            self.state.answered()
            objects += page["items"] or ()
            version = page["metadata"]["resourceVersion"]
        self._cache.replace(self._resource.kind, self._namespace, objects)
        self.state.listed = True
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
            self.state.opened()
            async for line in _lines(stream):
                self.state.reported()
                event = decoded(line)
                raw = event["object"]
                match event["type"]:
                    case "ADDED" | "MODIFIED":
                        self._cache.put(self._resource.kind, raw)
                    case "DELETED":
                        self._cache.drop(self._resource.kind, raw)
                    case "ERROR":
                        code = raw.get("code", 0)
                        raise _error(self.state.name, code, raw.get("reason", ""), raw.get("message", ""))
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


def _within(namespace: str | None) -> str:
    return f" in {namespace}" if namespace else ""


def _error(what: str, code: int, reason: str, message: str) -> ApiRefused:
    kind = ApiGone if code == 410 else ApiRefused
    return kind(what, code, reason, message)


PERIOD_SECONDS = 60.0
"""Between two counts: a job whose deletion was missed may go on for so long."""


SETTLE_SECONDS = 3.0
"""From a new list of the RLJobs to the count that it causes: what was listed is in the cache by then."""


class Census:
    """Counts the RLJobs of one namespace, or of all (None)."""

    def __init__(self, api: Api, cache: Cache, namespace: str | None) -> None:
        self._api = api
        self._cache = cache
        self._namespace = namespace
        self._due = asyncio.Event()
        self.state = WatchState(f"the census of {RLJOBS.plural}{_within(namespace)}", RLJOBS.plural)
        self.state.listed = True  # the watch makes the beginning

    def hasten(self) -> None:
        """The RLJobs were listed anew: what has gone meanwhile is not in that list, and is found by the next count."""
        self._due.set()

    async def run(self) -> None:
        """Until cancelled."""
        self.state.begin()
        while True:
            # Not by `wait_for`: that of Python 3.11 forgets a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_SECONDS * random.uniform(0.8, 1.0)):
                    await self._due.wait()
            if self._due.is_set():
                await asyncio.sleep(SETTLE_SECONDS)
                self._due.clear()
            try:
                await self.count()
            except (ApiRefused, ApiUnreachable) as error:
                self.state.broke(error)
            else:
                self.state.opened()

    async def count(self) -> None:
        """Drops what is gone, and reads what the cache has an older version of, or does not have."""
        namespace, known = self._namespace, self._cache.jobs_known()  # before the list: what comes later is not in it
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
