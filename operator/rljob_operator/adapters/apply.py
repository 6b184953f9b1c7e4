"""Apply: brings a job's objects to what `build` says they should be. Writes only what differs and is the job's.

What no watch has told of is created and never taken over: if it is there all the same, as without the job's label, it
is read whose it is. What has pods and was built for the current revision of the spec is left alone, but for its
replicas: if it differs, then another version of the operator built it, and an upgrade must not roll the pods of running
jobs.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from rljob_api.cluster import ANNOTATION_APPLIED, ANNOTATION_BUILT_FOR, ANNOTATION_KEPT, ANNOTATION_RUN
from rljob_operator.adapters.api import Api, Json
from rljob_operator.adapters.cache import Cache
from rljob_operator.adapters.checkpoint_claim import as_large_as_it_is
from rljob_operator.adapters.errors import ApiConflict, ApiNotFound, ApiRefused
from rljob_operator.adapters.ownership import Foreign, Holder, foreign, holder
from rljob_operator.adapters.refused_before import RefusedBefore
from rljob_operator.adapters.resources import NETWORK_POLICIES, resource_of
from rljob_operator.adapters.views import JobKey, OwnedView, view_owned

_log = logging.getLogger(__name__)

_KEPT_KINDS = frozenset({"Secret", "PersistentVolumeClaim"})
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
    """What has the name of an object of the job and is somebody else's."""


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
    """Whether it came only too early, or somebody else was faster: the next turn knows more."""
    return error.retry_after > 0 or isinstance(error, ApiConflict | ApiNotFound)


@dataclass(frozen=True, slots=True)
class Outcome:
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
        whose = Holder.JOB if known is None else holder(known, key, owner_uid, annotations.get(ANNOTATION_RUN, ""))
        if known is not None and whose is Holder.OTHER:
            taken.append(foreign(known, annotations))
        elif whose is Holder.PASSING:
            waits = True
        elif known is None or not leaves_alone(manifest, known):
            apply.append(manifest)
        elif (replicas := _replicas(manifest)) is not None and replicas != known.replicas:
            scale.append((known, replicas))
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
    unwanted = [view for name, view in there.items() if name not in names and _goes(view, key, owner_uid)]
    return Delta(tuple(apply), tuple(scale), tuple(unwanted), waits, tuple(taken))


async def carry_out(
    api: Api,
    cache: Cache,
    key: JobKey,
    owner_uid: str,
    delta: Delta,
    refused: RefusedBefore,
    before: Outcome = Outcome(),
) -> Outcome:
    """Writes the difference, but for what was refused `before` in the same turn.

    What was written is known at once; what was deleted is gone when the watch says so.

    An object that is refused (by a quota, a webhook) does not keep the others from being written; but nothing with pods
    is made while a policy that protects them is refused, or while somebody else has a name. A server that asks for time
    gets it, and nobody is asked again at once for what it has `refused` before.
    """
    writes = _Writes(api, cache, key, owner_uid, refused, before)
    await writes.carry_out(delta)
    return Outcome(tuple(writes.refusals), delta.waits or writes.waits, (*delta.taken, *writes.taken))


async def read(api: Api, key: JobKey, kind: str, name: str) -> OwnedView | None:
    """An object as the API server has it now, whoever made it."""
    try:
        return view_owned(kind, await api.get(resource_of(kind), key.namespace, name))
    except ApiNotFound:
        return None


class _Writes:
    """One job's, and what they have come to."""

    def __init__(
        self, api: Api, cache: Cache, key: JobKey, owner_uid: str, refused: RefusedBefore, before: Outcome
    ) -> None:
        self._api = api
        self._cache = cache
        self._key = key
        self._owner_uid = owner_uid
        self._refused = refused
        self.refusals = list(before.refusals)
        self.taken = list(before.taken)
        self.waits = before.waits
        self._held_back = before.held_back

    async def carry_out(self, delta: Delta) -> None:
        for kind, name, write in self._of(delta):
            if any(each.error.retry_after > 0 for each in self.refusals):
                break
            try:
                await write()
            except ApiRefused as error:
                self.refusals.append(Refusal(kind, name, error))

    def _of(self, delta: Delta) -> Iterator[tuple[str, str, Callable[[], Awaitable[None]]]]:
        refused = {(each.kind, each.name) for each in self.refusals}
        for each in delta.apply:
            kind, name = each["kind"], each["metadata"]["name"]
            if (kind, name) not in refused | self._held_back and self._may_make(each):
                yield kind, name, partial(self._apply_spaced, each)
        for view, replicas in delta.scale:
            yield view.kind, view.name, partial(self._scale, view, replicas)
        for view in delta.delete:
            yield view.kind, view.name, partial(self._delete, view)

    def _may_make(self, manifest: Json) -> bool:
        is_unprotected = any(each.kind == NETWORK_POLICIES.kind for each in self.refusals)
        return manifest["kind"] not in WITH_PODS or not (is_unprotected or self.taken)

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
        """The object to be applied to, where the job has made it already and no watch has told so."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        try:
            self._wrote(kind, await self._api.apply_new(resource_of(kind), self._key.namespace, name, manifest))
        except ApiConflict:
            found = await read(self._api, self._key, kind, name)
            if found is None:  # it went meanwhile: the next turn makes it
                raise
            return found if self._judge(found, manifest) is Holder.JOB else None
        return None

    def _judge(self, found: OwnedView, manifest: Json) -> Holder:
        annotations = manifest["metadata"]["annotations"]
        whose = holder(found, self._key, self._owner_uid, annotations.get(ANNOTATION_RUN, ""))
        if whose is Holder.OTHER:
            self.taken.append(foreign(found, annotations))
        self.waits |= whose is Holder.PASSING
        return whose

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
    kept = known.claim.kept if known.claim is not None else ""
    if annotations[ANNOTATION_APPLIED] == known.applied and annotations.get(ANNOTATION_KEPT, "") == kept:
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
    is_applied = bool(view.applied) and view.kind not in _KEPT_KINDS
    return is_applied and holder(view, key, owner_uid) is Holder.JOB
