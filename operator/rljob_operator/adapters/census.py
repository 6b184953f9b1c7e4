"""The census: now and then all RLJobs are counted, and what the watch of them has missed is made up for.

kopf serves that watch. After a gap it tells nothing of jobs that were deleted in it, and it does not say how old its
last sign of life is: so what it says is believed, and held against a list that costs the API server little.
"""

import asyncio
import logging
import random
import time
from collections.abc import Sequence

from rljob_operator.adapters.api import METADATA_ONLY, Api, Json
from rljob_operator.adapters.cache import Cache
from rljob_operator.adapters.errors import ApiNotFound, ApiRefused, ApiUnreachable
from rljob_operator.adapters.informer import PAGE
from rljob_operator.adapters.resources import RLJOBS, Resource
from rljob_operator.adapters.views import JobKey

PERIOD_SECONDS = 60.0
"""Between two counts: so long a job may go on that nobody wants any more, if its end was missed."""

_log = logging.getLogger(__name__)


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
        """What is counted, in words."""
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
        listed = await self._list(namespace)
        uids = {metadata["uid"] for metadata in listed}
        for key, uid in known.items():
            if uid not in uids and namespace in (None, key.namespace):
                _log.warning("%s is gone, which its watch did not tell", key)
                self._cache.drop_job({"metadata": {"namespace": key.namespace, "name": key.name, "uid": uid}})
        for metadata in listed:
            key = JobKey(metadata["namespace"], metadata["name"])
            if self._is_behind(key, metadata):
                await self._read(key)

    async def _list(self, namespace: str | None) -> list[Json]:
        found: list[Json] = []
        query = {"limit": str(PAGE)}
        while True:
            page = await self._api.list(RLJOBS, namespace, query, METADATA_ONLY.format(list="List"))
            found += [item["metadata"] for item in page["items"] or ()]
            token = page["metadata"].get("continue")
            if not token:
                return found
            query["continue"] = token

    def _is_behind(self, key: JobKey, metadata: Json) -> bool:
        known = self._cache.job(key)
        return known is None or int(known["metadata"]["resourceVersion"]) < int(metadata["resourceVersion"])

    async def _read(self, key: JobKey) -> None:
        try:
            self._cache.put_job(await self._api.get(RLJOBS, key.namespace, key.name))
        except ApiNotFound:
            return
