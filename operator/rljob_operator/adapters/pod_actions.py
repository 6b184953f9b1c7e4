"""What is done to pods: deletion, at once and by force where need be, and the mark that a Deployment shrinks by."""

import logging
import time
from collections.abc import Sequence

from rljob_operator.adapters.api import Api, Json
from rljob_operator.adapters.errors import ApiConflict, ApiNotFound, ApiRefused
from rljob_operator.adapters.pod_facts import stranded
from rljob_operator.adapters.resources import NODES, PODS
from rljob_operator.adapters.views import JobKey, PodView

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
MARKED = "-1000"

AT_ONCE_SECONDS = 1
"""0 would be force: the object goes although its processes may still run."""

_log = logging.getLogger(__name__)


class PodActions:
    """All of them may be done twice."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._buried: dict[JobKey, float] = {}

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        self._buried.pop(key, None)

    async def delete(self, key: JobKey, pod: PodView) -> None:
        """Deletes this pod, and not one of the same name: at once, by force where its node is not ready."""
        grace = AT_ONCE_SECONDS if await self._node_is_ready(pod) else 0
        if pod.deleting and pod.grace_seconds <= grace:
            return
        await self._delete(key, pod, grace)

    async def bury(self, key: JobKey, pods: Sequence[PodView]) -> None:
        """Deletes by force those that nobody is left to end: a StatefulSet makes no other one before they are gone."""
        for pod in stranded(pods, time.time()):
            if not await self._node_is_ready(pod):
                await self._delete(key, pod, 0)
                self._buried[key] = time.time()
        for pod in pods:
            # It had to be near a pod that was lost. The scheduler does not notice for minutes that it need not be now.
            if pod.unscheduled and not pod.deleting and pod.created_at <= self._buried.get(key, 0.0):
                await self._delete(key, pod, AT_ONCE_SECONDS)

    async def mark(self, key: JobKey, pod: PodView) -> None:
        """Its Deployment takes it first when it shrinks."""
        await self._annotate(key, pod, MARKED)

    async def unmark(self, key: JobKey, pod: PodView) -> None:
        """Takes the mark back."""
        await self._annotate(key, pod, None)

    async def _delete(self, key: JobKey, pod: PodView, grace: int) -> None:
        options = {"gracePeriodSeconds": grace, "preconditions": {"uid": pod.uid}}
        try:
            await self._api.delete(PODS, key.namespace, pod.name, options)
        except (ApiNotFound, ApiConflict):
            return
        _log.info("%s: deleted pod %s%s", key, pod.name, "" if grace else " by force: its node is not ready")

    async def _annotate(self, key: JobKey, pod: PodView, cost: str | None) -> None:
        body: Json = {"metadata": {"uid": pod.uid, "annotations": {DELETION_COST: cost}}}
        try:
            await self._api.merge(PODS, key.namespace, pod.name, body)
        except (ApiNotFound, ApiConflict):
            return

    async def _node_is_ready(self, pod: PodView) -> bool:
        if not pod.node:
            return True
        try:
            node = await self._api.get(NODES, None, pod.node)
        except ApiNotFound:
            return False
        except ApiRefused as error:  # an operator of single namespaces may not ask
            _log.debug("node %s: %s", pod.node, error)
            return True
        conditions = node.get("status", {}).get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
