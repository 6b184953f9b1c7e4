"""Claims: whether all names of a job's objects are its own, found out before anything of it runs.

What has no pods is created at once, and that fails where somebody else was first. What has pods is only looked for, in
the one turn in which it is made. After that the watches tell of all that bears the job's label.
"""

from collections.abc import Iterable, Iterator

from rljob_api.cluster import control_name
from rljob_operator.adapters.api import Api, Json
from rljob_operator.adapters.apply import WITH_PODS, Delta, Outcome, Refusal, carry_out, read
from rljob_operator.adapters.cache import Cache
from rljob_operator.adapters.errors import ApiRefused
from rljob_operator.adapters.ownership import SET_KIND, Holder, foreign, holder
from rljob_operator.adapters.resources import CLAIMS
from rljob_operator.adapters.views import JobKey, OwnedView


async def claim(api: Api, cache: Cache, key: JobKey, owner_uid: str, delta: Delta, *, has_begun: bool) -> Outcome:
    """Makes what is missing and has no pods, and says who else has a name, of that or of what has pods."""
    there = cache.owned(key)
    missing = [each for each in delta.apply if (each["kind"], each["metadata"]["name"]) not in there]
    still = Delta(apply=tuple(each for each in missing if each["kind"] not in WITH_PODS))
    made = await carry_out(api, cache, key, owner_uid, still)
    refusals, taken = list(made.refusals), [*delta.taken, *made.taken]
    for kind, name in _unseen(missing, has_begun=has_begun):
        try:
            found = await read(api, key, kind, name)
        except ApiRefused as error:
            refusals.append(Refusal(kind, name, error))
            continue
        if found is not None and _is_foreign(found, key, owner_uid):
            taken.append(foreign(found))
    return Outcome(tuple(refusals), made.waits, tuple(taken))


def _unseen(missing: Iterable[Json], *, has_begun: bool) -> Iterator[tuple[str, str]]:
    """Kind and name of what has pods, and of the volumes that it would take for its own.

    A StatefulSet does so with every claim of the right name. Those of a job that has begun are its own.
    """
    for manifest in missing:
        if manifest["kind"] in WITH_PODS:
            yield manifest["kind"], manifest["metadata"]["name"]
            if not has_begun:
                yield from ((CLAIMS.kind, name) for name in _volumes(manifest))


def _is_foreign(view: OwnedView, key: JobKey, owner_uid: str) -> bool:
    controller = view.controller
    if controller is not None and (controller.kind, controller.name) == (SET_KIND, control_name(key.name)):
        return False  # the volume of an earlier job, which goes with its StatefulSet
    return holder(view, key, owner_uid) is Holder.OTHER


def _volumes(manifest: Json) -> Iterator[str]:
    for template in manifest["spec"].get("volumeClaimTemplates", ()):
        for ordinal in range(max(1, manifest["spec"]["replicas"])):
            yield f"{template['metadata']['name']}-{manifest['metadata']['name']}-{ordinal}"
