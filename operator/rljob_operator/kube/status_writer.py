"""Status writes: what was decided is in the API server before anything is done. The status is written here only.

Every write carries the resourceVersion that the decision was made from: if another client wrote in between, it is
refused, and the job is decided again from a fresh read.
"""

import time

from rljob_api.status import Condition, RLJobStatus, TrainingStatus
from rljob_operator.core.outcome import has_recorded
from rljob_operator.kube.api import Api, Json
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.errors import ApiConflict, ApiNotFound
from rljob_operator.kube.kinds import RLJOBS
from rljob_operator.kube.views import JobKey

PROGRESS_SECONDS = 15.0
"""Progress alone is written this often at most: at a thousand jobs every write is felt by everybody."""


class Overtaken(Exception):
    """Another client has written, or the job is gone; the cache has the newest state now."""


class StatusWriter:
    """Writes one job's status where it has changed, and remembers when it last did."""

    def __init__(self, api: Api, cache: Cache, key: JobKey) -> None:
        self._api = api
        self._cache = cache
        self._key = key
        self._written_at = float("-inf")

    async def write(self, raw: Json, old: RLJobStatus, new: RLJobStatus) -> float | None:
        """Writes `new` over `old`, the status of `raw`. Raises Overtaken.

        None: the API server has it. Else it is progress alone, and so many seconds too early to be written.
        """
        if new == old and raw["status"]:
            return None
        early = self._written_at + PROGRESS_SECONDS - time.monotonic()
        if early > 0 and raw["status"] and decisive(new) == decisive(old):
            return early
        wanted = new.model_dump(mode="json", by_alias=True, exclude_none=True)
        await self._patch(raw, merge_patch(raw["status"], wanted))
        self._written_at = time.monotonic()
        return None

    async def write_condition(self, raw: Json, condition: Condition) -> bool:
        """Sets one condition in a status of which nothing else is understood, nor changed. Raises Overtaken.

        False: it is there already.
        """
        others = [each for each in raw["status"].get("conditions", []) if each.get("type") != condition.type]
        before = [each for each in raw["status"].get("conditions", []) if each not in others]
        if any((each.get("reason"), each.get("message")) == (condition.reason, condition.message) for each in before):
            return False
        written = condition.model_dump(mode="json", by_alias=True)
        await self._patch(raw, {"conditions": [*others, written], "reason": condition.reason})
        return True

    async def _patch(self, raw: Json, status: Json) -> None:
        body = {
            "metadata": {"uid": raw["metadata"]["uid"], "resourceVersion": raw["metadata"]["resourceVersion"]},
            "status": status,
        }
        try:
            written = await self._api.merge(RLJOBS, self._key.namespace, self._key.name, body, "status")
        except ApiConflict as error:
            await self._refresh()
            raise Overtaken(str(error)) from error
        except ApiNotFound as error:  # the watch of RLJobs may have missed its end
            self._cache.drop_job(raw)
            raise Overtaken(str(error)) from error
        self._cache.put_job(written, quietly=True)

    async def _refresh(self) -> None:
        """Reads the job again into the cache."""
        key = self._key
        known = self._cache.job(key)
        try:
            self._cache.put_job(await self._api.get(RLJOBS, key.namespace, key.name))
        except ApiNotFound:
            if known is not None:
                self._cache.drop_job(known)


def decisive(status: RLJobStatus) -> tuple[object, ...]:
    """The part of a status that must be written before anything else is done: all but progress.

    What an event is remembered by belongs to it, else every turn would emit the event again; and of progress what a
    later turn could not find out any more: the highest staleness, and that a checkpoint ended a row of restarts.
    """
    roles = [
        role.model_copy(
            update={
                "pods": [pod.model_copy(update={"engine_pid": None, "engines": [], "ranks": []}) for pod in role.pods]
            }
        )
        for role in status.roles
    ]
    training = status.training
    judged = dict.fromkeys(("judged_replicas", "judged_from_step", "up_since", "down_since"))
    scaling = status.scaling.model_copy(update=judged)
    rest = status.model_copy(
        update={"training": TrainingStatus(), "evaluation": None, "roles": roles, "scaling": scaling}
    )
    return rest, training.rows_dropped, training.staleness.max, has_recorded(status)


def merge_patch(old: Json, new: Json) -> Json:
    """What a JSON merge patch has to contain to turn `old` into `new`."""
    patch: Json = {name: None for name in old if name not in new}
    for name, value in new.items():
        known = old.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            inner = merge_patch(known, value)
            if inner:
                patch[name] = inner
        elif value != known or name not in old:
            patch[name] = value
    return patch
