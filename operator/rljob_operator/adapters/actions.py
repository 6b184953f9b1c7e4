"""Actions: the core's, carried out on a cluster. Each may be carried out twice; the first that fails ends the turn.

What Kubernetes does by itself is left to it: Deployments make pods, StatefulSets and the kubelet restart Redis.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rljob_api.failpoints import failpoint
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_api.wire.epochs import EpochRequest
from rljob_api.wire.identity import PodKey
from rljob_operator.adapters.api import Api
from rljob_operator.adapters.coordinators import Coordinator
from rljob_operator.adapters.errors import ApiConflict, ApiNotFound
from rljob_operator.adapters.infrastructure_facts import process_name, returns_by_itself
from rljob_operator.adapters.pod_actions import PodActions
from rljob_operator.adapters.pod_facts import life_of, returns
from rljob_operator.adapters.resources import RLJOBS
from rljob_operator.adapters.views import JobKey, PodView
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
from rljob_operator.core.roster import pods
from rljob_operator.core.told import epoch_opened


@dataclass(frozen=True, slots=True)
class Scene:
    """Where the actions of a turn take place."""

    key: JobKey
    uid: str
    job: RLJob
    status: RLJobStatus
    """As it was persisted in this turn."""
    pods: Sequence[PodView]
    members: Mapping[PodKey, PodView]
    coordinator: Coordinator | None
    told: list[Event] = field(default_factory=list)
    """What came of actions and is to be told."""


class Actions:
    """Carries out those of one job."""

    def __init__(self, api: Api, key: JobKey) -> None:
        self._api = api
        self._pods = PodActions(api, key)

    async def bury(self, pods: Sequence[PodView]) -> None:
        """Lets go of pods that are lost with their node: they would be going for ever."""
        await self._pods.bury(pods)

    async def carry_out(self, action: Action, scene: Scene) -> None:
        """One action; raises what the API server or the coordinator answered."""
        match action:
            case RaiseEpoch():
                await self._raise_epoch(action, scene)
            case SetDesired(desired):
                if scene.coordinator is not None:
                    await scene.coordinator.link.set_desired(desired)
                    failpoint("operator.after_write")
            case AcknowledgeFailures(ids):
                if scene.coordinator is not None:
                    await scene.coordinator.link.acknowledge(ids)
                    failpoint("operator.after_write")
            case CreatePod(pod):
                await self._make_way(scene, pod)
            case KillPod(pod, life) | MarkForDeletion(pod, life) | KeepPod(pod, life):
                view = scene.members.get(pod)
                if view is not None and life_of(view) == life:
                    await self._to_pod(action, view)
            case RestartInfrastructure(name):
                await self._restart_infrastructure(scene, name)
            case DeleteJob():
                await self._delete_job(scene)
            case Stop():
                pass  # the replicas follow from the status

    async def _to_pod(self, action: Action, pod: PodView) -> None:
        match action:
            case KillPod():
                await self._pods.delete(pod)
            case MarkForDeletion():
                await self._pods.mark(pod)
            case KeepPod():
                await self._pods.unmark(pod)

    async def _raise_epoch(self, action: RaiseEpoch, scene: Scene) -> None:
        if scene.coordinator is None:
            return
        failpoint("epoch.after_persist")
        request = EpochRequest(epoch=action.epoch, decision_id=action.decision_id, reason=action.reason, job=scene.job)
        point = await scene.coordinator.link.raise_epoch(request)
        failpoint("epoch.after_raise")
        failpoint("operator.after_write")
        scene.told.append(epoch_opened(point, time.time()))

    async def _make_way(self, scene: Scene, key: PodKey) -> None:
        """A pod whose life was given up and that stays as it is keeps its Deployment from making another one."""
        lost = {pod.lost_life for other, pod in pods(scene.status) if other == key and pod.lost_life and not pod.life}
        for view in scene.pods:
            stays = not view.deleting and view.phase not in ("Failed", "Succeeded")
            if life_of(view) in lost and stays and not returns(view, None):
                await self._pods.delete(view)

    async def _restart_infrastructure(self, scene: Scene, name: str) -> None:
        for view in scene.pods:
            if process_name(scene.key, view) == name and not view.deleting and not returns_by_itself(view):
                await self._pods.delete(view)

    async def _delete_job(self, scene: Scene) -> None:
        options = {"preconditions": {"uid": scene.uid}, "propagationPolicy": "Background"}
        try:
            await self._api.delete(RLJOBS, scene.key.namespace, scene.key.name, options)
        except (ApiNotFound, ApiConflict):
            return
