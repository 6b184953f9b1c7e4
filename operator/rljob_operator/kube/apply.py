"""Apply: brings a job's objects to the manifests of `build`, and claims their names first.

Writes only what differs and belongs to the job. Unknown objects are created and never taken over: on a conflict the
existing one is read and its owner determined. Objects with pods built for the same spec revision keep their template,
so that an upgrade of the operator rolls no running job. A refused manifest is resubmitted with backoff.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from rljob_api.cluster import (
    ANNOTATION_APPLIED,
    ANNOTATION_BUILT_FOR,
    ANNOTATION_RETAINED,
    ANNOTATION_RUN,
)
from rljob_operator.kube.api import FIELD_MANAGER, Api, Json
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.checkpoint_claim import as_large_as_it_is
from rljob_operator.kube.edits import Edits, Name, Restored, is_own, name_of, taken_by
from rljob_operator.kube.errors import ApiConflict, ApiNotFound, ApiRefused
from rljob_operator.kube.kinds import CLAIMS, NETWORK_POLICIES, RLJOBS, WITH_PODS, resource_of
from rljob_operator.kube.ownership import Foreign, ObjectHolder, foreign, holder
from rljob_operator.kube.views import JobKey, OwnedView, view_owned
from rljob_operator.rate_limit import backoff_seconds

ASK_AGAIN_SECONDS = (1.0, 8.0)
"""Less than the time until the next turn of a job with a refused object."""


@dataclass(frozen=True, slots=True)
class _Refused:
    digest: str
    error: ApiRefused
    times: int
    until: float


@dataclass(slots=True)
class RefusedWrites:
    """Of one job. What is wanted of an object now is another object than what was refused."""

    clock: Callable[[], float] = time.monotonic
    _known: dict[tuple[str, str], _Refused] = field(default_factory=dict)

    def answer(self, manifest: Json) -> ApiRefused | None:
        """The API server's refusal of exactly this, if it is too early to submit it again."""
        known = self._of(manifest)
        return known.error if known is not None and self.clock() < known.until else None

    def note(self, manifest: Json, error: ApiRefused) -> None:
        """It was refused now."""
        known = self._of(manifest)
        times = 1 + (known.times if known is not None else 0)
        until = self.clock() + backoff_seconds(times, *ASK_AGAIN_SECONDS)
        self._known[_name(manifest)] = _Refused(_digest(manifest), error, times, until)

    def forget(self, manifest: Json) -> None:
        """It was taken."""
        self._known.pop(_name(manifest), None)

    def _of(self, manifest: Json) -> _Refused | None:
        known = self._known.get(_name(manifest))
        return known if known is not None and known.digest == _digest(manifest) else None


def _name(manifest: Json) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _digest(manifest: Json) -> str:
    digest: str = manifest["metadata"]["annotations"][ANNOTATION_APPLIED]
    return digest


_log = logging.getLogger(__name__)


_IRREPLACEABLE_KINDS = frozenset({"Secret", "PersistentVolumeClaim"})
"""What they hold cannot be made again: only the deletion of the job takes them."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What is to be done to a job's objects, in this order."""

    apply: tuple[Json, ...] = ()
    scale: tuple[tuple[OwnedView, int], ...] = ()
    """Objects of which only the replicas are to change."""
    delete: tuple[OwnedView, ...] = ()
    waits: bool = False
    """Objects of an earlier job of the same name are still there: the garbage collector has to come first."""
    taken: tuple[Foreign, ...] = ()
    """Foreign objects that have the name of an object of the job."""
    leaving: tuple[OwnedView, ...] = ()
    """Objects that are waited for."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An object that the API server did not take."""

    kind: str
    name: str
    error: ApiRefused

    def __str__(self) -> str:
        return f"{self.kind} {self.name} was refused: {self.error.message}"

    @property
    def passes(self) -> bool:
        """See there."""
        return passes(self.error)


def passes(error: ApiRefused) -> bool:
    """Whether it came only too early, or another client was faster: the next turn knows more."""
    return error.retry_after > 0 or isinstance(error, ApiConflict | ApiNotFound)


@dataclass(frozen=True, slots=True)
class ApplyOutcome:
    """What was not written, and why."""

    refusals: tuple[Refusal, ...] = ()
    waits: bool = False
    taken: tuple[Foreign, ...] = ()
    held_back: frozenset[tuple[str, str]] = frozenset()
    """Kind and name of what must not be made yet: it would take what is going for its own."""
    restored: tuple[Restored, ...] = ()
    """Objects that other clients had changed or deleted."""
    leaving: tuple[OwnedView, ...] = ()
    """Objects that are being deleted and still have a name of the job's objects."""


def difference(
    wanted: Sequence[Json],
    there: Mapping[Name, OwnedView],
    key: JobKey,
    owner_uid: str,
    edited: Mapping[Name, bool] = MappingProxyType({}),
) -> Delta:
    """Writes by which `there` becomes `wanted`. Pure.

    `edited`: objects that other clients have changed, and whether it is time to restore them.
    """
    apply: list[Json] = []
    scale: list[tuple[OwnedView, int]] = []
    taken: list[Foreign] = []
    leaving: list[OwnedView] = []
    for manifest in wanted:
        name = name_of(manifest)
        known = there.get(name)
        annotations = manifest["metadata"]["annotations"]
        whose = (
            ObjectHolder.JOB if known is None else holder(known, key, owner_uid, annotations.get(ANNOTATION_RUN, ""))
        )
        if known is not None and whose is ObjectHolder.OTHER:
            taken.append(foreign(known, annotations))
        elif known is not None and whose is ObjectHolder.PASSING:
            leaving.append(known)
        elif known is None or edited.get(name, not leaves_alone(manifest, known)):
            apply.append(manifest)
        elif (replicas := _replicas(manifest)) is not None and replicas != known.replicas:
            scale.append((known, replicas))
    names = {name_of(manifest) for manifest in wanted}
    unwanted = [view for name, view in there.items() if name not in names and _goes(view, key, owner_uid)]
    return Delta(tuple(apply), tuple(scale), tuple(unwanted), bool(leaving), tuple(taken), tuple(leaving))


@dataclass(frozen=True, slots=True)
class JobObjects:
    """The objects of one job, as the cache has them, and what the API server refused of them before."""

    api: Api
    cache: Cache
    key: JobKey
    uid: str
    """Of the job, which owns them."""
    refused: RefusedWrites = field(default_factory=RefusedWrites)
    edits: Edits = field(default_factory=Edits)

    def difference(self, wanted: Sequence[Json]) -> Delta:
        """What has to be written so that the job has what is wanted."""
        there, edited = self.cache.owned(self.key), self.edited(wanted)
        due = [manifest for manifest in wanted if name_of(manifest) in there or not self._was_deleted_again(manifest)]
        return difference(due, there, self.key, self.uid, edited)

    def _was_deleted_again(self, manifest: Json) -> bool:
        """Whether another client deletes what is restored, and it is too early to make it once more."""
        return self.edits.was_there(name_of(manifest)) and self.edits.waits(manifest)

    def edited(self, wanted: Sequence[Json]) -> Mapping[Name, bool]:
        """Objects of the job that other clients have changed, and whether it is time to restore them."""
        there = self.cache.owned(self.key)
        known = ((manifest, there[name]) for manifest in wanted if (name := name_of(manifest)) in there)
        own = ((manifest, view) for manifest, view in known if holder(view, self.key, self.uid) is ObjectHolder.JOB)
        return {
            name_of(manifest): not self.edits.waits(manifest)
            for manifest, view in own
            if self.edits.lost(manifest, view)
        }

    async def claim(self, delta: Delta, *, has_begun: bool) -> ApplyOutcome:
        """Makes what is missing and has no pods; names foreign objects that have a name of that or of what has pods."""
        there = self.cache.owned(self.key)
        missing = [each for each in delta.apply if (each["kind"], each["metadata"]["name"]) not in there]
        writes = _Writes(self, ApplyOutcome(taken=delta.taken))
        await writes.carry_out(Delta(apply=tuple(each for each in missing if each["kind"] not in WITH_PODS)))
        for each in missing:
            if each["kind"] in WITH_PODS:
                await writes.check_name(each, has_begun=has_begun)
                writes.hold_back_from(delta.leaving, each)
        return writes.outcome()

    async def carry_out(self, delta: Delta, before: ApplyOutcome = ApplyOutcome()) -> ApplyOutcome:
        """Writes the difference, but for what was refused `before` in the same turn.

        What was written is in the cache at once; what was deleted leaves it when the watch reports that.

        An object that is refused (by a quota, a webhook) does not keep the others from being written; but nothing with
        pods is made while a policy that protects them is refused, or while a foreign object has a name. A server that
        asks for time gets it, and what it has `refused` is not submitted again at once.
        """
        writes = _Writes(self, before)
        await writes.carry_out(delta)
        outcome = writes.outcome()
        taken, leaving = (*delta.taken, *outcome.taken), (*delta.leaving, *outcome.leaving)
        return replace(outcome, waits=delta.waits or outcome.waits, taken=taken, leaving=leaving)


async def read(api: Api, key: JobKey, kind: str, name: str) -> OwnedView | None:
    """An object as the API server has it now, also a foreign one."""
    try:
        return view_owned(kind, await api.get(resource_of(kind), key.namespace, name))
    except ApiNotFound:
        return None


class _Writes:
    """Those of one turn, and what they have come to."""

    def __init__(self, job: JobObjects, before: ApplyOutcome) -> None:
        self._api = job.api
        self._cache = job.cache
        self._key = job.key
        self._owner_uid = job.uid
        self._refused = job.refused
        self._edits = job.edits
        self._refusals = list(before.refusals)
        self._taken = list(before.taken)
        self._waits = before.waits
        self._held_back = set(before.held_back)
        self._restored = list(before.restored)
        self._leaving: list[OwnedView] = []

    def outcome(self) -> ApplyOutcome:
        """Of all writes until now."""
        waits = self._waits or bool(self._held_back)
        return ApplyOutcome(
            tuple(self._refusals),
            waits,
            tuple(self._taken),
            frozenset(self._held_back),
            tuple(self._restored),
            tuple(self._leaving),
        )

    async def carry_out(self, delta: Delta) -> None:
        for kind, name, write in self._of(delta):
            # The garbage collector takes what is made after its job. A set that it takes at once can leave a claim,
            # which the set's controller makes then: of a job that release 0.2.0 began.
            if self._cache.is_gone(self._owner_uid) or any(each.error.retry_after > 0 for each in self._refusals):
                break
            try:
                await write()
            except ApiRefused as error:
                self._refusals.append(Refusal(kind, name, error))

    def _of(self, delta: Delta) -> Iterator[tuple[str, str, Callable[[], Awaitable[None]]]]:
        refused = {(each.kind, each.name) for each in self._refusals}
        for each in delta.apply:
            kind, name = each["kind"], each["metadata"]["name"]
            if (kind, name) not in refused | self._held_back and self._may_make(each):
                yield kind, name, partial(self._apply_spaced, each)
        for view, replicas in delta.scale:
            yield view.kind, view.name, partial(self._scale, view, replicas)
        for view in delta.delete:
            yield view.kind, view.name, partial(self._delete, view)

    def _may_make(self, manifest: Json) -> bool:
        is_unprotected = any(each.kind == NETWORK_POLICIES.kind for each in self._refusals)
        return manifest["kind"] not in WITH_PODS or not (is_unprotected or self._taken)

    async def _apply_spaced(self, manifest: Json) -> None:
        answer = self._refused.answer(manifest)
        if answer is not None:
            raise answer
        try:
            await self._apply(manifest)
        except ApiRefused as error:
            if not passes(error):
                self._refused.note(manifest, error)
            raise
        self._refused.forget(manifest)

    async def _apply(self, manifest: Json) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        known = self._cache.owned(self._key).get((kind, name))
        if known is None:
            known = await self._create(manifest)
        if known is None:
            return
        resource, body = resource_of(kind), as_large_as_it_is(manifest, known)
        lost = self._edits.lost(manifest, known)
        edited = await self._api.get(resource, self._key.namespace, name) if lost else None
        try:
            written = await self._api.apply(resource, self._key.namespace, name, body, known.uid)
        except ApiRefused:
            found = await self._get(kind, name)
            view = None if found is None else view_owned(kind, found)
            if found is None or view is None or (view.uid == known.uid and not found.get("immutable")):
                raise
            if view.uid == known.uid:
                await self._replace(manifest, view, found)
            else:
                self._judge(view, manifest)
            return
        self._wrote(manifest, written)
        if edited is not None and edited["metadata"]["resourceVersion"] != written["metadata"]["resourceVersion"]:
            self._restore(manifest, lost, edited)

    def _restore(self, manifest: Json, lost: tuple[str, ...], edited: Json) -> None:
        """Notes that another client had changed it."""
        managers = taken_by(manifest, lost, edited["metadata"].get("managedFields") or ())
        self._edits.restored(name_of(manifest))
        if not is_own(managers):
            others = tuple(each for each in managers if each != FIELD_MANAGER)
            self._restored.append(Restored(*name_of(manifest), lost, others))

    async def _replace(self, manifest: Json, view: OwnedView, found: Json) -> None:
        """Makes one again that another client has made immutable: only its deletion undoes that."""
        kind, name = name_of(manifest)
        lost = self._edits.lost(manifest, view)
        options = {"preconditions": {"uid": view.uid}, "propagationPolicy": "Background"}
        await self._api.delete(resource_of(kind), self._key.namespace, name, options)
        self._edits.deleted((kind, name))
        await self._create(manifest)
        made = self._cache.owned(self._key).get((kind, name))
        if made is not None and made.uid != view.uid:
            self._restore(manifest, (*lost, "immutable"), found)

    async def _create(self, manifest: Json) -> OwnedView | None:
        """The object to be applied to, where the job has made it already and no watch has reported it."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        was_there = self._edits.was_there((kind, name))
        if was_there and await self._job_goes():
            return None
        try:
            written = await self._api.apply_new(resource_of(kind), self._key.namespace, name, manifest)
        except ApiConflict:
            found = await read(self._api, self._key, kind, name)
            if found is None:  # it went meanwhile: the next turn makes it
                raise
            return found if self._judge(found, manifest) is ObjectHolder.JOB else None
        self._wrote(manifest, written)
        if was_there:
            self._edits.restored((kind, name))
            self._restored.append(Restored(kind, name))
        return None

    async def _job_goes(self) -> bool:
        """Whether the job is being deleted: what is gone was taken by the garbage collector."""
        try:
            found = await self._api.get_metadata(RLJOBS, self._key.namespace, self._key.name)
        except ApiNotFound:
            return True
        return found["metadata"]["uid"] != self._owner_uid or "deletionTimestamp" in found["metadata"]

    def _judge(self, found: OwnedView, manifest: Json) -> ObjectHolder:
        annotations = manifest["metadata"]["annotations"]
        whose = holder(found, self._key, self._owner_uid, annotations.get(ANNOTATION_RUN, ""))
        if whose is ObjectHolder.OTHER:
            self._taken.append(foreign(found, annotations))
        if whose is ObjectHolder.PASSING:
            self._waits = True
            self._leaving.append(found)
        return whose

    async def check_name(self, manifest: Json, *, has_begun: bool) -> None:
        """Whether another object has the name of one with pods, or of a volume that it would take for its own.

        A StatefulSet takes volumes by their names. Those of a job that has begun are its own; but none is, as long as
        one of an earlier job is there.
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        found = await self._read(kind, name)
        if found is not None and holder(found, self._key, self._owner_uid) is ObjectHolder.OTHER:
            self._taken.append(foreign(found))
        if found is not None:
            return
        for volume in _volumes(manifest):
            view = await self._read(CLAIMS.kind, volume)
            if view is None:
                continue
            whose = holder(view, self._key, self._owner_uid)
            if whose is ObjectHolder.PASSING:
                self._held_back.add((kind, name))
            elif whose is ObjectHolder.OTHER and not has_begun:
                self._taken.append(foreign(view))

    def hold_back_from(self, leaving: Sequence[OwnedView], manifest: Json) -> None:
        """Keeps pods from a claim of the job's name that goes: a pod that finds it before would begin on its data."""
        claims = {view.name for view in (*leaving, *self._leaving) if view.kind == CLAIMS.kind}
        if claims & set(_mounted(manifest)):
            self._held_back.add(name_of(manifest))

    async def _read(self, kind: str, name: str) -> OwnedView | None:
        try:
            return await read(self._api, self._key, kind, name)
        except ApiRefused as error:
            self._refusals.append(Refusal(kind, name, error))
            return None

    async def _get(self, kind: str, name: str) -> Json | None:
        try:
            return await self._api.get(resource_of(kind), self._key.namespace, name)
        except ApiNotFound:
            return None

    def _wrote(self, manifest: Json, written: Json) -> None:
        view = view_owned(manifest["kind"], written)
        self._cache.put_owned(self._key, view, quietly=True)
        self._edits.wrote(manifest, view)
        _log.info("%s: applied %s %s", self._key, view.kind, view.name)

    async def _scale(self, view: OwnedView, replicas: int) -> None:
        body = {"metadata": {"uid": view.uid}, "spec": {"replicas": replicas}}
        written = await self._api.merge(resource_of(view.kind), self._key.namespace, view.name, body)
        self._cache.put_owned(self._key, view_owned(view.kind, written), quietly=True)
        _log.info("%s: scaled %s %s to %d", self._key, view.kind, view.name, replicas)

    async def _delete(self, view: OwnedView) -> None:
        options = {"preconditions": {"uid": view.uid}, "propagationPolicy": "Background"}
        with suppress(ApiNotFound, ApiConflict):  # it is gone already, or another one has its name
            await self._api.delete(resource_of(view.kind), self._key.namespace, view.name, options)
        self._edits.deleted((view.kind, view.name))
        _log.info("%s: deleted %s %s, which is no longer wanted", self._key, view.kind, view.name)


def leaves_alone(manifest: Json, known: OwnedView) -> bool:
    """Whether the object stays as it is, but for its replicas."""
    annotations: Mapping[str, str] = manifest["metadata"]["annotations"]
    retained = known.claim.retained if known.claim is not None else ""
    if annotations[ANNOTATION_APPLIED] == known.applied and annotations.get(ANNOTATION_RETAINED, "") == retained:
        return True
    # Another digest for the same revision: the replicas changed, or another version of the operator built it.
    return manifest["kind"] in WITH_PODS and annotations[ANNOTATION_BUILT_FOR] == known.built_for


def _replicas(manifest: Json) -> int | None:
    if manifest["kind"] not in WITH_PODS:
        return None
    spec: dict[str, Any] = manifest["spec"]
    replicas: int | None = spec.get("replicas")
    return replicas


def _goes(view: OwnedView, key: JobKey, owner_uid: str) -> bool:
    """Whether the operator has applied it for this job, so that it goes when it is not wanted any more."""
    is_applied = bool(view.applied) and view.kind not in _IRREPLACEABLE_KINDS
    return is_applied and holder(view, key, owner_uid) is ObjectHolder.JOB


def _mounted(manifest: Json) -> Iterator[str]:
    """Claims that its pods name."""
    for volume in manifest["spec"]["template"]["spec"].get("volumes", ()):
        if "persistentVolumeClaim" in volume:
            yield volume["persistentVolumeClaim"]["claimName"]


def _volumes(manifest: Json) -> Iterator[str]:
    """Claims that a set makes, or takes where they are there."""
    for template in manifest["spec"].get("volumeClaimTemplates", ()):
        for ordinal in range(max(1, manifest["spec"]["replicas"])):
            yield f"{template['metadata']['name']}-{manifest['metadata']['name']}-{ordinal}"
