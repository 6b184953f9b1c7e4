"""The cache: the newest known version of every job, pod and owned object, which watches write to.

An older version never replaces a newer one; objects known to be deleted stay out. Each change enqueues its job with an
urgency. Reads are from memory; nothing here sends a request.
"""

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rljob_api.cluster import LABEL_PRIORITY, LABEL_QUEUE, secret_copy_name, secret_name
from rljob_operator.kube.api import Json
from rljob_operator.kube.kinds import PODS, SECRETS
from rljob_operator.kube.stored_spec import StoredSpec
from rljob_operator.kube.views import JobKey, OwnedView, PodView, job_of, view_owned, view_pod
from rljob_operator.kube.work_queue import Urgency


def urgency_of_job(known: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> Urgency:
    """Of a version of an RLJob, given the metadata of the one before: another user request, or only news."""
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


_RETAINED_METADATA = (
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
)
"""Parts of an RLJob's metadata: managedFields are longer than all the rest, and kubectl's annotation is the spec."""


_RETAINED_LABELS = (LABEL_QUEUE, LABEL_PRIORITY)
"""Kueue's, by which a job may name its queue."""


REMEMBERED_GONE = 20_000
"""Uids of objects that are gone, over all jobs: an answer that is under way for longer has missed its deadline."""


class Cache:
    """What is known of the cluster. `changed` is called with the key of a job that needs a turn, and how soon.

    An object of an unknown job causes no call: the garbage collector deletes it, or its job is about to be seen.
    """

    def __init__(self, changed: Callable[[JobKey, Urgency], None]) -> None:
        self._changed = changed
        self._jobs: dict[JobKey, Raw] = {}
        self._pods: defaultdict[JobKey, dict[str, PodView]] = defaultdict(dict)
        self._owned: defaultdict[JobKey, dict[tuple[str, str], OwnedView]] = defaultdict(dict)
        self._gone: OrderedDict[str, int] = OrderedDict()
        """The version by which each went: one with a later version is back under the watch's selector."""

    def job(self, key: JobKey) -> Raw | None:
        """The newest known version of an RLJob, its spec a StoredSpec; callers do not change it."""
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
        retained = {name: metadata[name] for name in _RETAINED_METADATA if name in metadata}
        labels = metadata.get("labels") or {}
        retained["labels"] = {name: labels[name] for name in _RETAINED_LABELS if name in labels}
        self._jobs[key] = {"metadata": retained, "spec": _stored(raw, known), "status": raw.get("status") or {}}
        if not quietly:
            self._changed(key, urgency_of_job(known and known["metadata"], metadata))

    def drop_job(self, raw: Raw) -> None:
        """An RLJob is gone; one of the same name that was made since is another one."""
        metadata = raw["metadata"]
        key = JobKey(metadata["namespace"], metadata["name"])
        known = self._jobs.get(key)
        if known is not None and known["metadata"]["uid"] == metadata["uid"]:
            del self._jobs[key]
            self._forget_secrets(key)
            self._changed(key, Urgency.ALARM)

    def _forget_secrets(self, key: JobKey) -> None:
        """No watch reports the end of a job's Secrets: they are read by their names."""
        owned = self._owned.get(key, {})
        for name in (secret_name(key.name), secret_copy_name(key.name)):
            owned.pop((SECRETS.kind, name), None)
        if not owned:
            self._owned.pop(key, None)

    def jobs_known(self) -> dict[JobKey, str]:
        """Every RLJob: its uid by its key."""
        return {key: raw["metadata"]["uid"] for key, raw in self._jobs.items()}

    def namespaces(self) -> set[str]:
        """The namespaces that have RLJobs."""
        return {key.namespace for key in self._jobs}

    def wake(self, namespace: str) -> None:
        """Another release has left its jobs to this one, or the other way round: each gets a turn."""
        for key in self._jobs:
            if key.namespace == namespace:
                self._changed(key, Urgency.ALARM)

    def replace(self, kind: str, namespace: str | None, objects: Sequence[Json]) -> None:
        """These are all objects of jobs of this kind that there are (in this namespace)."""
        for raw in objects:
            self.put(kind, raw)
        listed = {raw["metadata"]["uid"] for raw in objects}
        for key, name, uid in self._known(kind):
            if uid not in listed and namespace in (None, key.namespace):
                self._drop(kind, key, name, uid)

    def put(self, kind: str, raw: Json) -> None:
        """A version of an object of a job, as a list or a watch has it."""
        key = job_of(raw)
        if key is None:
            return
        if kind != PODS.kind:
            self.put_owned(key, view_owned(kind, raw))
            return
        pod = view_pod(raw)
        known = self._pods[key].get(pod.uid)
        self._pods[key][pod.uid] = pod
        if known != pod:
            self._wake(key, urgency_of_pod(known, pod))

    def drop(self, kind: str, raw: Json) -> None:
        """The last version of an object of a job that is gone, as a watch has it."""
        key, metadata = job_of(raw), raw["metadata"]
        if key is None:
            return
        if kind != PODS.kind:
            self.mark_gone(metadata["uid"], int(metadata["resourceVersion"]))
        self._drop(kind, key, metadata["name"], metadata["uid"])

    def put_owned(self, key: JobKey, view: OwnedView, *, quietly: bool = False) -> None:
        """A version of an object of a job that was seen or (quietly) written."""
        known = self._owned.get(key, {}).get((view.kind, view.name))
        if view.version <= self._gone.get(view.uid, -1):
            return
        if known is not None and known.uid == view.uid and known.version > view.version:
            return
        self._owned[key][view.kind, view.name] = view
        if known != view and not quietly:
            self._wake(key, Urgency.PROGRESS)

    def mark_gone(self, uid: str, version: int = sys.maxsize) -> None:
        """A watch has reported the end of an object: no answer that is still under way brings it back.

        A watch reports one that loses its label in the same way; with its label it has a later version.
        """
        self._gone[uid] = version
        while len(self._gone) > REMEMBERED_GONE:
            self._gone.popitem(last=False)

    def is_gone(self, uid: str) -> bool:
        """Whether a watch has reported the end of this object, a while ago at most."""
        return uid in self._gone

    def _known(self, kind: str) -> set[tuple[JobKey, str, str]]:
        """Every object of a kind by job, name and uid."""
        if kind == PODS.kind:
            return {(key, pod.name, uid) for key, pods in self._pods.items() for uid, pod in pods.items()}
        return {
            (key, name, view.uid)
            for key, views in self._owned.items()
            for (of_kind, name), view in views.items()
            if of_kind == kind
        }

    def _drop(self, kind: str, key: JobKey, name: str, uid: str) -> None:
        pods, owned = self._pods[key], self._owned[key]
        known = owned.get((kind, name))
        if kind == PODS.kind:
            is_gone = pods.pop(uid, None) is not None
        elif is_gone := known is not None and known.uid == uid:
            del owned[kind, name]
        if is_gone:
            self._wake(key, Urgency.ALARM)
        if not pods:
            del self._pods[key]
        if not owned:
            del self._owned[key]

    def _wake(self, key: JobKey, urgency: Urgency) -> None:
        if key in self._jobs:
            self._changed(key, urgency)


def _stored(raw: Raw, known: Raw | None) -> StoredSpec:
    """The spec of a version of an RLJob: that of the one before, where only the status is another."""
    metadata, before = raw["metadata"], known["metadata"] if known is not None else {}
    names = ("uid", "generation")
    if known is not None and all(name in metadata and before.get(name) == metadata[name] for name in names):
        spec: StoredSpec = known["spec"]
        return spec
    return StoredSpec.of(raw.get("spec") or {})


def _is_newer(metadata: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Versions of one object are numbers that grow; another object of the same name is always news."""
    if metadata["uid"] != known["uid"]:
        return True
    return int(metadata["resourceVersion"]) > int(known["resourceVersion"])
