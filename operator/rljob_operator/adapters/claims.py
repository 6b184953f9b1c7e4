"""Claims: whether all names of a job's objects are its own, found out before anything of it runs.

What has no pods is created at once, and that fails where somebody else was first. What has pods is only looked for, in
the one turn in which it is made. After that the watches tell of all that bears the job's label.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rljob_api.cluster import control_name
from rljob_operator.adapters.api import Api, Json
from rljob_operator.adapters.apply import WITH_PODS, Delta, Outcome, Refusal, carry_out, read
from rljob_operator.adapters.cache import Cache
from rljob_operator.adapters.errors import ApiRefused
from rljob_operator.adapters.ownership import SET_KIND, Foreign, Holder, foreign, holder
from rljob_operator.adapters.refused_before import RefusedBefore
from rljob_operator.adapters.resources import CLAIMS
from rljob_operator.adapters.views import JobKey, OwnedView


async def claim(
    api: Api, cache: Cache, key: JobKey, owner_uid: str, delta: Delta, refused: RefusedBefore, *, has_begun: bool
) -> Outcome:
    """Makes what is missing and has no pods, and says who else has a name, of that or of what has pods."""
    there = cache.owned(key)
    missing = [each for each in delta.apply if (each["kind"], each["metadata"]["name"]) not in there]
    still = Delta(apply=tuple(each for each in missing if each["kind"] not in WITH_PODS))
    made = await carry_out(api, cache, key, owner_uid, still, refused)
    look = _Look(api, key, owner_uid, list(made.refusals), [*delta.taken, *made.taken])
    for each in missing:
        if each["kind"] in WITH_PODS:
            await look.at(each, has_begun=has_begun)
    waits = made.waits or bool(look.held_back)
    return Outcome(tuple(look.refusals), waits, tuple(look.taken), frozenset(look.held_back))


@dataclass(slots=True)
class _Look:
    """At what has pods, and at the volumes that it would take for its own, as a StatefulSet does by their names."""

    api: Api
    key: JobKey
    owner_uid: str
    refusals: list[Refusal]
    taken: list[Foreign]
    held_back: set[tuple[str, str]] = field(default_factory=set)

    async def at(self, manifest: Json, *, has_begun: bool) -> None:
        """Those of a job that has begun are its own; but none is, as long as one of an earlier job is there."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        found = await self._read(kind, name)
        if found is not None and holder(found, self.key, self.owner_uid) is Holder.OTHER:
            self.taken.append(foreign(found))
        if found is not None:
            return
        for volume in _volumes(manifest):
            view = await self._read(CLAIMS.kind, volume)
            if view is None:
                continue
            if _goes_with_its_set(view, self.key):
                self.held_back.add((kind, name))
            elif not has_begun and holder(view, self.key, self.owner_uid) is Holder.OTHER:
                self.taken.append(foreign(view))

    async def _read(self, kind: str, name: str) -> OwnedView | None:
        try:
            return await read(self.api, self.key, kind, name)
        except ApiRefused as error:
            self.refusals.append(Refusal(kind, name, error))
            return None


def _goes_with_its_set(view: OwnedView, key: JobKey) -> bool:
    """Whether it is the volume of an earlier control Redis, which the garbage collector takes with its StatefulSet."""
    controller = view.controller
    return controller is not None and (controller.kind, controller.name) == (SET_KIND, control_name(key.name))


def _volumes(manifest: Json) -> Iterator[str]:
    for template in manifest["spec"].get("volumeClaimTemplates", ()):
        for ordinal in range(max(1, manifest["spec"]["replicas"])):
            yield f"{template['metadata']['name']}-{manifest['metadata']['name']}-{ordinal}"
