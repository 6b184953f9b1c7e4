"""Sinks: what the watches see goes into the cache, as views. They decide nothing."""

from rljob_operator.adapters.api import Json
from rljob_operator.adapters.cache import Cache
from rljob_operator.adapters.views import job_of, view_owned, view_pod


class PodSink:
    """Pods of jobs."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def replace(self, namespace: str | None, objects: list[Json]) -> None:
        """What is known and not among these is gone."""
        seen = set()
        for raw in objects:
            self.put(raw)
            seen.add(raw["metadata"]["uid"])
        for key, uid in self._cache.pods_known():
            if uid not in seen and namespace in (None, key.namespace):
                self._cache.drop_pod(key, uid)

    def put(self, raw: Json) -> None:
        """A version of a pod."""
        key = job_of(raw)
        if key is not None:
            self._cache.put_pod(key, view_pod(raw))

    def drop(self, raw: Json) -> None:
        """A pod is gone."""
        key = job_of(raw)
        if key is not None:
            self._cache.drop_pod(key, raw["metadata"]["uid"])


class OwnedSink:
    """One kind of what jobs are made of."""

    def __init__(self, cache: Cache, kind: str) -> None:
        self._cache = cache
        self._kind = kind

    def replace(self, namespace: str | None, objects: list[Json]) -> None:
        """What is known and not among these is gone."""
        seen = set()
        for raw in objects:
            self.put(raw)
            seen.add(raw["metadata"]["uid"])
        for key, name, uid in self._cache.owned_known(self._kind):
            if uid not in seen and namespace in (None, key.namespace):
                self._cache.drop_owned(key, self._kind, name, uid)

    def put(self, raw: Json) -> None:
        """A version of an object."""
        key = job_of(raw)
        if key is not None:
            self._cache.put_owned(key, view_owned(self._kind, raw))

    def drop(self, raw: Json) -> None:
        """An object is gone."""
        key = job_of(raw)
        if key is not None:
            metadata = raw["metadata"]
            self._cache.bury(metadata["uid"])
            self._cache.drop_owned(key, self._kind, metadata["name"], metadata["uid"])
