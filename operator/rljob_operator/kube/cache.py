"""The cache: the newest known version of every job, pod and owned object, and the sinks that watches write to.

An older version never replaces a newer one; objects known to be deleted stay out. Each change enqueues its job with an
urgency. Reads are from memory; nothing here sends a request.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rljob_operator.kube.api import Json
from rljob_operator.kube.views import JobKey, OwnedView, PodView, job_of, view_owned, view_pod
from rljob_operator.kube.work_queue import Urgency


def urgency_of_job(known: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> Urgency:
    """Of a version of an RLJob, given the metadata of the one before: another wish, or only news."""
    if "deletionTimestamp" in metadata:
        return Urgency.ALARM
    if known is None or known["uid"] != metadata["uid"]:
        return Urgency.PROGRESS  # nothing of it runs yet
    return Urgency.PROGRESS if known.get("generation") == metadata.get("generation") else Urgency.ALARM


def urgency_of_pod(known: PodView | None, pod: PodView) -> Urgency:
    """Of a version of a pod: an end, or the announcement of one, or a step on its way to being ready."""
    before = _end_of(known) if known is not None else _NO_END
    return Urgency.PROGRESS if _end_of(pod) == before else Urgency.ALARM


_NO_END = (False, "", 0, None, None, False)


def _end_of(pod: PodView) -> tuple[object, ...]:
    over = pod.phase in ("Failed", "Succeeded")
    return pod.deleting, pod.disruption, pod.restarts, pod.ended, pod.last_end, over


Raw = dict[str, Any]


_KEPT = ("name", "namespace", "uid", "generation", "resourceVersion", "labels", "annotations", "deletionTimestamp")
"""Of an RLJob's metadata; its managedFields are longer than all the rest."""


REMEMBERED_GONE = 20_000
"""Uids of objects that are gone, over all jobs: an answer that is under way for longer has missed its deadline."""


class Cache:
    """What is known of the cluster. `changed` is called with the key of a job that should be looked at, and why.

    What belongs to a job that is not known wakes nobody: it is the garbage collector's, or its job is about to be seen.
    """

    def __init__(self, changed: Callable[[JobKey, Urgency], None]) -> None:
        self._changed = changed
        self._jobs: dict[JobKey, Raw] = {}
        self._pods: defaultdict[JobKey, dict[str, PodView]] = defaultdict(dict)
        self._owned: defaultdict[JobKey, dict[tuple[str, str], OwnedView]] = defaultdict(dict)
        self._gone: OrderedDict[str, None] = OrderedDict()

    def job(self, key: JobKey) -> Raw | None:
        """The newest known version of an RLJob; not to be changed by who asks."""
        return self._jobs.get(key)

    def jobs(self) -> Iterable[Raw]:
        """All of them."""
        return list(self._jobs.values())

    def pods(self, key: JobKey) -> list[PodView]:
        """Pods of a job, oldest first."""
        return sorted(self._pods.get(key, {}).values(), key=lambda pod: (pod.created_at, pod.name))

    def owned(self, key: JobKey) -> Mapping[tuple[str, str], OwnedView]:
        """Objects of a job by kind and name."""
        return self._owned.get(key, {})

    def put_job(self, raw: Raw, *, quietly: bool = False) -> None:
        """A version of an RLJob that was seen or (quietly) written."""
        metadata = raw["metadata"]
        key = JobKey(metadata["namespace"], metadata["name"])
        known = self._jobs.get(key)
        if metadata["uid"] in self._gone or (known is not None and not _is_newer(metadata, known["metadata"])):
            return
        kept = {name: metadata[name] for name in _KEPT if name in metadata}
        self._jobs[key] = {"metadata": kept, "spec": raw.get("spec") or {}, "status": raw.get("status") or {}}
        if not quietly:
            self._changed(key, urgency_of_job(known and known["metadata"], metadata))

    def drop_job(self, raw: Raw) -> None:
        """An RLJob is gone; one of the same name that was made since is another one."""
        metadata = raw["metadata"]
        key = JobKey(metadata["namespace"], metadata["name"])
        known = self._jobs.get(key)
        if known is not None and known["metadata"]["uid"] == metadata["uid"]:
            del self._jobs[key]
            self._changed(key, Urgency.ALARM)

    def jobs_known(self) -> dict[JobKey, str]:
        """Every RLJob: its uid by its key."""
        return {key: raw["metadata"]["uid"] for key, raw in self._jobs.items()}

    def put_pod(self, key: JobKey, pod: PodView) -> None:
        """A version of a pod; what nobody decides on wakes nobody."""
        known = self._pods[key].get(pod.uid)
        self._pods[key][pod.uid] = pod
        if known != pod:
            self._wake(key, urgency_of_pod(known, pod))

    def drop_pod(self, key: JobKey, uid: str) -> None:
        """A pod is gone."""
        if self._pods[key].pop(uid, None) is not None:
            self._wake(key, Urgency.ALARM)
        if not self._pods[key]:
            del self._pods[key]

    def pods_known(self) -> set[tuple[JobKey, str]]:
        """Every pod by job and uid."""
        return {(key, uid) for key, pods in self._pods.items() for uid in pods}

    def put_owned(self, key: JobKey, view: OwnedView, *, quietly: bool = False) -> None:
        """A version of an object of a job that was seen or (quietly) written."""
        known = self._owned.get(key, {}).get((view.kind, view.name))
        if view.uid in self._gone or (known is not None and known.uid == view.uid and known.version > view.version):
            return
        self._owned[key][view.kind, view.name] = view
        if known != view and not quietly:
            self._wake(key, Urgency.PROGRESS)

    def drop_owned(self, key: JobKey, kind: str, name: str, uid: str) -> None:
        """An object of a job is gone."""
        known = self._owned[key].get((kind, name))
        if known is not None and known.uid == uid:
            del self._owned[key][kind, name]
            self._wake(key, Urgency.ALARM)
        if not self._owned[key]:
            del self._owned[key]

    def owned_known(self, kind: str) -> set[tuple[JobKey, str, str]]:
        """Every object of a kind by job, name and uid."""
        return {
            (key, name, view.uid)
            for key, views in self._owned.items()
            for (of_kind, name), view in views.items()
            if of_kind == kind
        }

    def bury(self, uid: str) -> None:
        """The watch has told the end of an object: no answer that is still under way brings it back."""
        self._gone[uid] = None
        while len(self._gone) > REMEMBERED_GONE:
            self._gone.popitem(last=False)

    def _wake(self, key: JobKey, urgency: Urgency) -> None:
        if key in self._jobs:
            self._changed(key, urgency)


def _is_newer(metadata: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Versions of one object are numbers that grow; another object of the same name is always news."""
    if metadata["uid"] != known["uid"]:
        return True
    return int(metadata["resourceVersion"]) > int(known["resourceVersion"])


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
