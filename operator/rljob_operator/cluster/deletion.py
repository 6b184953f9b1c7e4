"""Deletion of a job that a finalizer keeps: its pods end, and its status and an Event say what it waits for.

Called by the reconciler in place of a decision. It makes no object: the garbage collector, or that of a namespace,
deletes them at the same time. Everything is found again from the cluster by an operator that is started later.
"""

from collections.abc import Mapping, Sequence

from rljob_api.cluster import COMPONENT_WORKER, deployment_name
from rljob_api.names import Role
from rljob_api.status import RLJobStatus
from rljob_operator.cluster.job import JobMemory
from rljob_operator.core.deletion import deletion_event, with_deletion
from rljob_operator.kube.accepted_spec import Unreadable
from rljob_operator.kube.api import Json
from rljob_operator.kube.apply import Delta
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.kinds import WITH_PODS
from rljob_operator.kube.ownership import ObjectHolder, holder
from rljob_operator.kube.views import JobKey, OwnedView, PodView
from rljob_operator.kube.work_queue import NextTurn

AGAIN_SECONDS = 10.0
"""How often pods that should have ended are looked at: a lost node reports no end."""


def finalizers_of(raw: Json) -> Sequence[str]:
    """Finalizers of an RLJob: each keeps it from going."""
    found: Sequence[str] = raw["metadata"].get("finalizers") or ()
    return found


def to_stop(
    owned: Mapping[tuple[str, str], OwnedView], pods: Sequence[PodView], key: JobKey, uid: str
) -> Sequence[OwnedView]:
    """Sets of the job whose pods are to end now: those of roles first, which save by way of coordinator and Redis."""
    sets = [
        view
        for view in owned.values()
        if view.kind in WITH_PODS and view.replicas != 0 and holder(view, key, uid) is ObjectHolder.JOB
    ]
    of_roles = {deployment_name(key.name, role) for role in Role}
    workers = [view for view in sets if view.name in of_roles]
    if workers or any(pod.component == COMPONENT_WORKER for pod in pods):
        return workers
    return sets


async def delete_with_pods(key: JobKey, raw: Json, memory: JobMemory, cache: Cache, now: float) -> NextTurn | None:
    """Ends the pods and reports what the job waits for. Raises Overtaken, and what the API server refuses."""
    pods, status = cache.pods(key), memory.accepted.status(raw)
    if not isinstance(status, Unreadable):
        await _report(raw, status, memory, now, has_pods=bool(pods))
    stop = to_stop(cache.owned(key), pods, key, memory.uid)
    outcome = await memory.objects.carry_out(Delta(scale=tuple((view, 0) for view in stop)))
    await memory.actions.release_lost(pods)
    await memory.report.refusals(raw, outcome.refusals)
    return NextTurn(AGAIN_SECONDS) if pods or stop else None


async def _report(raw: Json, status: RLJobStatus, memory: JobMemory, now: float, *, has_pods: bool) -> None:
    finalizers = finalizers_of(raw)
    new = with_deletion(status, finalizers, now, has_pods=has_pods)
    if new != status:
        await memory.status.write(raw, status, new)
    # In every turn: the process may end after the status is written, and Events are emitted once for their key.
    await memory.report.standing(raw, status, deletion_event(finalizers, now))
