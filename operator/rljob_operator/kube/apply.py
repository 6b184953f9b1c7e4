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
from typing import Any

from rljob_api.cluster import (
    ANNOTATION_APPLIED,
    ANNOTATION_BUILT_FOR,
    ANNOTATION_RETAINED,
    ANNOTATION_RUN,
    control_name,
)
from rljob_operator.kube.api import Api, Json
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.checkpoint_claim import as_large_as_it_is
from rljob_operator.kube.errors import ApiConflict, ApiNotFound, ApiRefused
from rljob_operator.kube.kinds import CLAIMS, NETWORK_POLICIES, resource_of
from rljob_operator.kube.ownership import SET_KIND, Foreign, ObjectHolder, foreign, holder
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


WITH_PODS = frozenset({"Deployment", "StatefulSet"})


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


def difference(
    wanted: Sequence[Json], there: Mapping[tuple[str, str], OwnedView], key: JobKey, owner_uid: str
) -> Delta:
    """What has to be written so that `there` becomes `wanted`. Pure."""
    apply: list[Json] = []
    scale: list[tuple[OwnedView, int]] = []
    taken: list[Foreign] = []
    waits = False
    for manifest in wanted:
        known = there.get((manifest["kind"], manifest["metadata"]["name"]))
        annotations = manifest["metadata"]["annotations"]
        whose = (
            ObjectHolder.JOB if known is None else holder(known, key, owner_uid, annotations.get(ANNOTATION_RUN, ""))
        )
        if known is not None and whose is ObjectHolder.OTHER:
            taken.append(foreign(known, annotations))
        elif whose is ObjectHolder.PASSING:
            waits = True
        elif known is None or not leaves_alone(manifest, known):
            apply.append(manifest)
        elif (replicas := _replicas(manifest)) is not None and replicas != known.replicas:
            scale.append((known, replicas))
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
    unwanted = [view for name, view in there.items() if name not in names and _goes(view, key, owner_uid)]
    return Delta(tuple(apply), tuple(scale), tuple(unwanted), waits, tuple(taken))


@dataclass(frozen=True, slots=True)
class JobObjects:
    """The objects of one job, as the cache has them, and what the API server refused of them before."""

    api: Api
    cache: Cache
    key: JobKey
    uid: str
    """Of the job, which owns them."""
    refused: RefusedWrites = field(default_factory=RefusedWrites)

    def difference(self, wanted: Sequence[Json]) -> Delta:
        """What has to be written so that the job has what is wanted."""
        return difference(wanted, self.cache.owned(self.key), self.key, self.uid)

    async def claim(self, delta: Delta, *, has_begun: bool) -> ApplyOutcome:
        """Makes what is missing and has no pods; names foreign objects that have a name of that or of what has pods."""
        there = self.cache.owned(self.key)
        missing = [each for each in delta.apply if (each["kind"], each["metadata"]["name"]) not in there]
        writes = _Writes(self, ApplyOutcome(taken=delta.taken))
        await writes.carry_out(Delta(apply=tuple(each for each in missing if each["kind"] not in WITH_PODS)))
        for each in missing:
            if each["kind"] in WITH_PODS:
                await writes.check_name(each, has_begun=has_begun)
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
        return replace(outcome, waits=delta.waits or outcome.waits, taken=(*delta.taken, *outcome.taken))


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
        self._refusals = list(before.refusals)
        self._taken = list(before.taken)
        self._waits = before.waits
        self._held_back = set(before.held_back)

    def outcome(self) -> ApplyOutcome:
        """Of all writes until now."""
        waits = self._waits or bool(self._held_back)
        return ApplyOutcome(tuple(self._refusals), waits, tuple(self._taken), frozenset(self._held_back))

    async def carry_out(self, delta: Delta) -> None:
        for kind, name, write in self._of(delta):
            # A StatefulSet that the garbage collector takes at once can leave a claim, which its controller makes then.
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
        try:
            resource, body = resource_of(kind), as_large_as_it_is(manifest, known)
            self._wrote(kind, await self._api.apply(resource, self._key.namespace, name, body, known.uid))
        except ApiRefused:
            found = await read(self._api, self._key, kind, name)
            if found is None or found.uid == known.uid:
                raise
            self._judge(found, manifest)

    async def _create(self, manifest: Json) -> OwnedView | None:
        """The object to be applied to, where the job has made it already and no watch has reported it."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        try:
            self._wrote(kind, await self._api.apply_new(resource_of(kind), self._key.namespace, name, manifest))
        except ApiConflict:
            found = await read(self._api, self._key, kind, name)
            if found is None:  # it went meanwhile: the next turn makes it
                raise
            return found if self._judge(found, manifest) is ObjectHolder.JOB else None
        return None

    def _judge(self, found: OwnedView, manifest: Json) -> ObjectHolder:
        annotations = manifest["metadata"]["annotations"]
        whose = holder(found, self._key, self._owner_uid, annotations.get(ANNOTATION_RUN, ""))
        if whose is ObjectHolder.OTHER:
            self._taken.append(foreign(found, annotations))
        self._waits |= whose is ObjectHolder.PASSING
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
            if _goes_with_its_set(view, self._key):
                self._held_back.add((kind, name))
            elif not has_begun and holder(view, self._key, self._owner_uid) is ObjectHolder.OTHER:
                self._taken.append(foreign(view))

    async def _read(self, kind: str, name: str) -> OwnedView | None:
        try:
            return await read(self._api, self._key, kind, name)
        except ApiRefused as error:
            self._refusals.append(Refusal(kind, name, error))
            return None

    def _wrote(self, kind: str, written: Json) -> None:
        view = view_owned(kind, written)
        self._cache.put_owned(self._key, view, quietly=True)
        _log.info("%s: applied %s %s", self._key, kind, view.name)

    async def _scale(self, view: OwnedView, replicas: int) -> None:
        body = {"metadata": {"uid": view.uid}, "spec": {"replicas": replicas}}
        written = await self._api.merge(resource_of(view.kind), self._key.namespace, view.name, body)
        self._cache.put_owned(self._key, view_owned(view.kind, written), quietly=True)
        _log.info("%s: scaled %s %s to %d", self._key, view.kind, view.name, replicas)

    async def _delete(self, view: OwnedView) -> None:
        options = {"preconditions": {"uid": view.uid}, "propagationPolicy": "Background"}
        with suppress(ApiNotFound, ApiConflict):  # it is gone already, or another one has its name
            await self._api.delete(resource_of(view.kind), self._key.namespace, view.name, options)
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


def _goes_with_its_set(view: OwnedView, key: JobKey) -> bool:
    """Whether it is the volume of an earlier control Redis, which the garbage collector takes with its StatefulSet."""
    controller = view.controller
    return controller is not None and (controller.kind, controller.name) == (SET_KIND, control_name(key.name))


def _volumes(manifest: Json) -> Iterator[str]:
    for template in manifest["spec"].get("volumeClaimTemplates", ()):
        for ordinal in range(max(1, manifest["spec"]["replicas"])):
            yield f"{template['metadata']['name']}-{manifest['metadata']['name']}-{ordinal}"
