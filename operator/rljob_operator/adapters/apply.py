"""Apply: brings a job's objects to what `build` says they should be. Writes only what differs.

What has pods and was built for the current revision of the spec is left alone, but for its replicas: if it differs,
then another version of the operator built it, and an upgrade must not roll the pods of running jobs.
"""

import logging
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rljob_api.cluster import ANNOTATION_APPLIED, ANNOTATION_BUILT_FOR
from rljob_operator.adapters.api import Api, Json
from rljob_operator.adapters.cache import Cache
from rljob_operator.adapters.errors import ApiConflict, ApiNotFound, ApiRefused
from rljob_operator.adapters.resources import resource_of
from rljob_operator.adapters.views import JobKey, OwnedView, view_owned

_log = logging.getLogger(__name__)

_KEPT_KINDS = frozenset({"Secret", "PersistentVolumeClaim"})
"""What they hold cannot be made again: only the deletion of the job takes them."""

_WITH_PODS = frozenset({"Deployment", "StatefulSet"})


@dataclass(frozen=True, slots=True)
class Delta:
    """What is to be done to a job's objects."""

    apply: tuple[Json, ...] = ()
    scale: tuple[tuple[OwnedView, int], ...] = ()
    """Objects of which only the replicas are to change."""
    delete: tuple[OwnedView, ...] = ()
    waits: bool = False
    """Objects of an earlier job of the same name are still there: the garbage collector has to come first."""


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
        """Whether it came only too early, or somebody else was faster: the next turn knows more."""
        return self.error.retry_after > 0 or isinstance(self.error, ApiConflict | ApiNotFound)


def difference(wanted: Sequence[Json], there: Mapping[tuple[str, str], OwnedView], owner_uid: str) -> Delta:
    """What has to be written so that `there` becomes `wanted`. Pure."""
    apply: list[Json] = []
    scale: list[tuple[OwnedView, int]] = []
    waits = False
    for manifest in wanted:
        known = there.get((manifest["kind"], manifest["metadata"]["name"]))
        if known is not None and (known.deleting or known.owner_uid not in ("", owner_uid)):
            waits = True
        elif known is None or not leaves_alone(manifest, known):
            apply.append(manifest)
        elif (replicas := _replicas(manifest)) is not None and replicas != known.replicas:
            scale.append((known, replicas))
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
    return Delta(tuple(apply), tuple(scale), tuple(_unwanted(names, there, owner_uid)), waits)


async def carry_out(api: Api, cache: Cache, key: JobKey, delta: Delta) -> list[Refusal]:
    """Writes the difference. What was written is known at once; what was deleted is gone when the watch says so.

    An object that is refused (by a quota, a webhook) does not keep the others from being written; but nothing with pods
    is made while a policy that protects them is refused. A server that asks for time gets it.
    """
    refusals: list[Refusal] = []

    def protected(manifest: Json) -> bool:
        return manifest["kind"] not in _WITH_PODS or not any(each.kind == "NetworkPolicy" for each in refusals)

    writes: Iterator[tuple[str, str, Awaitable[None]]] = chain(
        (
            (each["kind"], each["metadata"]["name"], _applied(api, cache, key, each))
            for each in delta.apply
            if protected(each)
        ),
        ((view.kind, view.name, _scaled(api, cache, key, view, n)) for view, n in delta.scale),
        ((view.kind, view.name, _deleted(api, key, view)) for view in delta.delete),
    )
    for kind, name, write in writes:
        try:
            await write
        except ApiRefused as error:
            refusals.append(Refusal(kind, name, error))
            if error.retry_after > 0:
                break
    return refusals


async def _applied(api: Api, cache: Cache, key: JobKey, manifest: Json) -> None:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    written = await api.apply(resource_of(kind), key.namespace, name, manifest)
    cache.put_owned(key, view_owned(kind, written), quietly=True)
    _log.info("%s: applied %s %s", key, kind, name)


async def _scaled(api: Api, cache: Cache, key: JobKey, view: OwnedView, replicas: int) -> None:
    body = {"metadata": {"uid": view.uid}, "spec": {"replicas": replicas}}
    written = await api.merge(resource_of(view.kind), key.namespace, view.name, body)
    cache.put_owned(key, view_owned(view.kind, written), quietly=True)
    _log.info("%s: scaled %s %s to %d", key, view.kind, view.name, replicas)


async def _deleted(api: Api, key: JobKey, view: OwnedView) -> None:
    options = {"preconditions": {"uid": view.uid}, "propagationPolicy": "Background"}
    with suppress(ApiNotFound, ApiConflict):  # it is gone already, or another one has its name
        await api.delete(resource_of(view.kind), key.namespace, view.name, options)
    _log.info("%s: deleted %s %s, which is no longer wanted", key, view.kind, view.name)


def leaves_alone(manifest: Json, known: OwnedView) -> bool:
    """Whether the object stays as it is, but for its replicas."""
    annotations: Mapping[str, str] = manifest["metadata"]["annotations"]
    if annotations[ANNOTATION_APPLIED] == known.applied:
        return True
    # Another digest for the same revision: the replicas changed, or another version of the operator built it.
    return manifest["kind"] in _WITH_PODS and annotations[ANNOTATION_BUILT_FOR] == known.built_for


def _replicas(manifest: Json) -> int | None:
    if manifest["kind"] not in _WITH_PODS:
        return None
    spec: dict[str, Any] = manifest["spec"]
    replicas: int | None = spec.get("replicas")
    return replicas


def _unwanted(
    names: set[tuple[str, str]], there: Mapping[tuple[str, str], OwnedView], owner_uid: str
) -> list[OwnedView]:
    """Objects that the operator applied for this job and does not want any more."""
    return [
        view
        for name, view in there.items()
        if name not in names
        and view.kind not in _KEPT_KINDS
        and view.applied
        and view.owner_uid == owner_uid
        and not view.deleting
    ]
