"""Remains: pods with the label of a job that has none yet, and whether anybody takes them away.

Those of an earlier job of the same name go with it, and are waited for. Those that were cut off from it, as by
`kubectl delete --cascade=orphan`, stay until somebody deletes them: the new job would wait for ever.
"""

import time
from collections.abc import Callable, Sequence

from rljob_operator.adapters.api import Api
from rljob_operator.adapters.errors import ApiNotFound
from rljob_operator.adapters.ownership import REPLICA_SET_KIND, Foreign, named
from rljob_operator.adapters.resources import REPLICA_SETS
from rljob_operator.adapters.views import Controller, JobKey, PodView, controller_of

PATIENCE_SECONDS = 60.0
"""For the garbage collector. What it has not begun to delete by then is named, whatever may take it away."""


MOST_NAMED = 8
"""Pods: more names say nothing new."""


def remains_sentence(pods: Sequence[PodView]) -> str:
    """What a job waits for that has the name of an earlier one."""
    if not pods:
        return "objects of an earlier job of this name are still being deleted; the job begins when they are gone"
    names = sorted(pod.name for pod in pods)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return (
        f"pods of an earlier job of this name are still there: {', '.join(names[:MOST_NAMED])}{more}; the job begins "
        "when they are gone"
    )


class Remains:
    """What one job waits for, and since when."""

    def __init__(self, api: Api, key: JobKey, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._key = key
        self._clock = clock
        self._since: float | None = None

    def are_gone(self) -> None:
        """The job waits no more."""
        self._since = None

    async def stranded(self, pods: Sequence[PodView]) -> list[Foreign]:
        """Pods, or what makes them, that nobody takes away."""
        if self._since is None:
            self._since = self._clock()
        # One that is being deleted ends by itself, however long its grace is, or is let go when its node is lost.
        staying = [pod for pod in pods if not pod.deleting]
        if self._clock() - self._since > PATIENCE_SECONDS:
            return [Foreign("Pod", pod.name, named(pod.controller)) for pod in staying]
        found = [Foreign("Pod", pod.name) for pod in staying if pod.controller is None]
        for controller in {pod.controller for pod in staying if pod.controller is not None}:
            if controller.kind == REPLICA_SET_KIND and await self._is_cut_off(controller):
                found.append(Foreign(REPLICA_SETS.kind, controller.name))
        return found

    async def _is_cut_off(self, replicas: Controller) -> bool:
        try:
            found = await self._api.get(REPLICA_SETS, self._key.namespace, replicas.name)
        except ApiNotFound:
            return False
        return "deletionTimestamp" not in found["metadata"] and controller_of(found["metadata"]) is None
