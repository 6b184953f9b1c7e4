"""What is done to pods: deletion, at once and by force where need be, and the mark that a Deployment shrinks by."""

import logging
import time
from collections.abc import Sequence

from rljob_api.cluster import COMPONENT_CONTROL
from rljob_operator.adapters.api import Api, Json
from rljob_operator.adapters.errors import ApiConflict, ApiNotFound, ApiRefused
from rljob_operator.adapters.pod_facts import ending_of, stranded
from rljob_operator.adapters.resources import NODES, PODS
from rljob_operator.adapters.views import JobKey, PodView
from rljob_operator.core import PodEnding

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
MARKED = "-1000"

AT_ONCE_SECONDS = 1
"""0 would be force: the object goes although its processes may still run."""

_log = logging.getLogger(__name__)


class PodActions:
    """Of one job; all of them may be done twice."""

    def __init__(self, api: Api, key: JobKey) -> None:
        self._api = api
        self._key = key
        self._buried = frozenset[str]()
        """Uids of pods that were let go of and not yet seen to be gone."""
        self._beside = frozenset[str]()
        """Uids of pods that were there at a burial and have not been made anew for it."""

    async def delete(self, pod: PodView) -> None:
        """Deletes this pod, and not one of the same name: at once, by force where nobody is left to end it."""
        grace = 0 if await self._is_abandoned(pod) else AT_ONCE_SECONDS
        if pod.deleting and pod.grace_seconds <= grace:
            return
        await self._delete(pod, grace)

    async def bury(self, pods: Sequence[PodView]) -> None:
        """Deletes by force those that nobody is left to end: a StatefulSet makes no other one before they are gone."""
        lost = [pod for pod in stranded(pods, time.time()) if await self._is_abandoned(pod)]
        for pod in lost:
            await self._delete(pod, 0)
        for pod in self._kept_waiting(pods, frozenset(pod.uid for pod in lost)):
            await self._delete(pod, AT_ONCE_SECONDS)

    async def mark(self, pod: PodView) -> None:
        """Its Deployment takes it first when it shrinks."""
        await self._annotate(pod, MARKED)

    async def unmark(self, pod: PodView) -> None:
        """Takes the mark back."""
        await self._annotate(pod, None)

    def _kept_waiting(self, pods: Sequence[PodView], lost: frozenset[str]) -> list[PodView]:
        """Pods that had to be near a lost one: the scheduler does not notice for minutes that they need not be now.

        Meant are those that are listed when a pod is let go of, or when it is first seen to be gone, and each is named
        once: what is made later waits for something else.
        """
        buried, there = self._buried, frozenset(pod.uid for pod in pods)
        beside = self._beside & there
        if lost - buried or buried - there:
            beside |= there
        waiting = [pod for pod in pods if pod.uid in beside and pod.unscheduled and not pod.deleting]
        self._buried = (buried | lost) & there
        self._beside = beside - {pod.uid for pod in waiting}
        return waiting

    async def _delete(self, pod: PodView, grace: int) -> None:
        options = {"gracePeriodSeconds": grace, "preconditions": {"uid": pod.uid}}
        try:
            await self._api.delete(PODS, self._key.namespace, pod.name, options)
        except (ApiNotFound, ApiConflict):
            return
        _log.info("%s: deleted pod %s%s", self._key, pod.name, "" if grace else " by force: its node is lost")

    async def _annotate(self, pod: PodView, cost: str | None) -> None:
        body: Json = {"metadata": {"uid": pod.uid, "annotations": {DELETION_COST: cost}}}
        try:
            await self._api.merge(PODS, self._key.namespace, pod.name, body)
        except (ApiNotFound, ApiConflict):
            return

    async def _is_abandoned(self, pod: PodView) -> bool:
        """Whether its node is gone or silent.

        A silent node may still run it. Two control Redis must not write one file, so its pod has to be lost by the word
        of the cluster, too, which waits longer.
        """
        if not pod.node:
            return False
        try:
            node = await self._api.get(NODES, None, pod.node)
        except ApiNotFound:
            return True
        except ApiRefused as error:  # an operator of single namespaces may not ask
            _log.debug("node %s: %s", pod.node, error)
            return False
        conditions = node.get("status", {}).get("conditions", [])
        if any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions):
            return False
        return pod.component != COMPONENT_CONTROL or ending_of(pod, "") is PodEnding.NODE_LOST
