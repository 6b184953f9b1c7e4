"""Actions of the core, carried out on a cluster. Each may be repeated; the first that fails ends the turn.

What Kubernetes does by itself is left to it: Deployments make pods, StatefulSets and the kubelet restart Redis.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rljob_api.cluster import COMPONENT_CONTROL, COMPONENT_COORDINATOR
from rljob_api.failpoints import failpoint
from rljob_api.roles import SAVING_ROLES
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_api.wire.epochs import EpochRequest
from rljob_api.wire.identity import PodKey
from rljob_operator.cluster.coordinators import JobCoordinator
from rljob_operator.core import PodEnding
from rljob_operator.core.decision import (
    AcknowledgeFailures,
    Action,
    CreatePod,
    DeleteJob,
    Event,
    KeepPod,
    KillPod,
    MarkForDeletion,
    RaiseEpoch,
    RestartInfrastructure,
    SetDesired,
    Stop,
)
from rljob_operator.core.membership import pods
from rljob_operator.core.notices import epoch_opened
from rljob_operator.kube.api import Api, Json
from rljob_operator.kube.clock import Clock
from rljob_operator.kube.errors import ApiConflict, ApiNotFound, ApiRefused
from rljob_operator.kube.kinds import NODES, PODS, RLJOBS
from rljob_operator.kube.pod_facts import ending_of, incarnation_of, process_name, returns, returns_by_itself, stranded
from rljob_operator.kube.views import JobKey, PodView

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


MARKED = "-1000"


AT_ONCE_SECONDS = 1
"""0 would be force: the object goes although its processes may still run."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ActionContext:
    """Where the actions of a turn take place."""

    job: RLJob
    status: RLJobStatus
    """As it was persisted in this turn."""
    pods: Sequence[PodView]
    members: Mapping[PodKey, PodView]
    coordinator: JobCoordinator | None
    opened: list[Event] = field(default_factory=list)
    """Epochs that the coordinator has opened, to be reported."""

    def member(self, pod: PodKey, incarnation: str) -> PodView | None:
        """The pod that has this incarnation of a member; None where another has taken its place."""
        view = self.members.get(pod)
        return view if view is not None and incarnation_of(view) == incarnation else None


class Actions:
    """Carries out those of one job; all of them may be done twice."""

    def __init__(self, api: Api, key: JobKey, uid: str, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._key = key
        self._uid = uid
        self._released = frozenset[str]()
        """Uids of lost pods that were deleted by force and are not yet seen to be gone."""
        self._beside = frozenset[str]()
        """Uids of pods that were there at such a deletion and were not made again for it."""

    async def carry_out(self, action: Action, context: ActionContext) -> None:
        """One action; raises what the API server or the coordinator answered."""
        match action:
            case RaiseEpoch():
                await self._raise_epoch(action, context)
            case SetDesired(desired):
                if context.coordinator is not None:
                    await context.coordinator.link.set_desired(desired)
                    failpoint("operator.after_write")
            case AcknowledgeFailures(ids):
                if context.coordinator is not None:
                    await context.coordinator.link.acknowledge(ids)
                    failpoint("operator.after_write")
            case CreatePod(pod):
                await self._make_way(context, pod)
            case KillPod(pod, incarnation):
                if view := context.member(pod, incarnation):
                    await self.delete(view)
            case MarkForDeletion(pod, incarnation):
                if view := context.member(pod, incarnation):
                    await self._annotate(view, MARKED)
            case KeepPod(pod, incarnation):
                if view := context.member(pod, incarnation):
                    await self._annotate(view, None)
            case RestartInfrastructure(name):
                await self._restart_infrastructure(context, name)
            case DeleteJob():
                await self._delete_job()
            case Stop():
                pass  # the replicas follow from the status

    async def delete(self, pod: PodView) -> None:
        """Deletes this pod, and not one of the same name: at once, by force where its node can no longer end it."""
        grace = 0 if await self._is_abandoned(pod) else AT_ONCE_SECONDS
        if pod.deleting and pod.grace_seconds <= grace:
            return
        await self._delete(pod, grace)

    async def release_lost(self, pods: Sequence[PodView]) -> None:
        """Deletes by force pods whose node can no longer end them: a StatefulSet makes no other one before.

        Beside them, pods that keep others from leaving a node that is drained.
        """
        lost = [pod for pod in stranded(pods, self._clock()) if await self._is_abandoned(pod)]
        held = await self._held_from_drain(pods)
        for pod in lost:
            await self._delete(pod, 0)
        for pod in held:
            await self._delete(pod, AT_ONCE_SECONDS)
        for pod in self._waiting_beside(pods, frozenset(pod.uid for pod in (*lost, *held))):
            await self._delete(pod, AT_ONCE_SECONDS)

    async def _held_from_drain(self, pods: Sequence[PodView]) -> list[PodView]:
        """Pods that train, or their coordinator's, where the other waits for it on a node that takes no pods any more.

        They share a volume of one node. A drain takes one of them; then the job's budgets keep the other, beside which
        alone the first could be placed. A pod that still saves is waited for. So is no pod that is not there: a
        coordinator without any would be kept by its budget for nothing.
        """
        tied = [pod for pod in pods if pod.component == COMPONENT_COORDINATOR or pod.role in SAVING_ROLES]
        is_alone = not any(pod.node for pod in tied if pod.role in SAVING_ROLES)
        if any(pod.deleting for pod in tied) or not (is_alone or any(pod.unscheduled for pod in tied)):
            return []
        return [pod for pod in tied if pod.node and await self._is_cordoned(pod.node)]

    async def _is_cordoned(self, name: str) -> bool:
        try:
            node = await self._api.get(NODES, None, name)
        except ApiRefused as error:  # an operator of single namespaces may not ask
            _log.debug("node %s: %s", name, error)
            return False
        return bool(node.get("spec", {}).get("unschedulable"))

    def _waiting_beside(self, pods: Sequence[PodView], lost: frozenset[str]) -> list[PodView]:
        """Pods that had to be near a lost one: the scheduler does not notice for minutes that they need not be now.

        Meant are those that are listed when a pod is released, or when it is first seen to be gone, and each is named
        once: what is made later waits for something else.
        """
        released, there = self._released, frozenset(pod.uid for pod in pods)
        beside = self._beside & there
        if lost - released or released - there:
            beside |= there
        waiting = [pod for pod in pods if pod.uid in beside and pod.unscheduled and not pod.deleting]
        self._released = (released | lost) & there
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

        A silent node may still run it. Two control Redis must not write one file, so the cluster has to declare its pod
        lost, too, which takes longer.
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

    async def _raise_epoch(self, action: RaiseEpoch, context: ActionContext) -> None:
        if context.coordinator is None:
            return
        failpoint("epoch.after_persist")
        request = EpochRequest(
            epoch=action.epoch, decision_id=action.decision_id, reason=action.reason, job=context.job
        )
        point = await context.coordinator.link.raise_epoch(request)
        failpoint("epoch.after_raise")
        failpoint("operator.after_write")
        context.opened.append(epoch_opened(point, self._clock()))

    async def _make_way(self, context: ActionContext, key: PodKey) -> None:
        """Deletes a pod whose incarnation was given up and that stays: with it its Deployment would make no other."""
        lost = {
            pod.lost_incarnation
            for other, pod in pods(context.status)
            if other == key and pod.lost_incarnation and not pod.incarnation
        }
        for view in context.pods:
            stays = not view.deleting and view.phase not in ("Failed", "Succeeded")
            if incarnation_of(view) in lost and stays and not returns(view, None):
                await self.delete(view)

    async def _restart_infrastructure(self, context: ActionContext, name: str) -> None:
        for view in context.pods:
            if process_name(self._key, view) == name and not view.deleting and not returns_by_itself(view):
                await self.delete(view)

    async def _delete_job(self) -> None:
        options = {"preconditions": {"uid": self._uid}, "propagationPolicy": "Background"}
        try:
            await self._api.delete(RLJOBS, self._key.namespace, self._key.name, options)
        except (ApiNotFound, ApiConflict):
            return
