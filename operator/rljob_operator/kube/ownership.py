"""Ownership: whether an object belongs to this job, to an earlier job of the same name, or is foreign.

Called before every write. Objects without a controller are foreign, except a retained checkpoint claim. Pods of an
earlier job are waited for; pods orphaned from it (`--cascade=orphan`) are named, since they stay until deleted.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from rljob_api.cluster import (
    ANNOTATION_SPEC,
    API_GROUP,
    RLJOB_KIND,
    checkpoint_claim_name,
    control_claim_name,
    control_name,
)
from rljob_api.revision import read_retained_spec, run_differences
from rljob_operator.build import ClaimedBy
from rljob_operator.kube.api import Api
from rljob_operator.kube.errors import ApiNotFound
from rljob_operator.kube.kinds import CLAIMS, REPLICA_SETS, STATEFUL_SETS
from rljob_operator.kube.views import Controller, JobKey, OwnedView, PodView, controller_of

JOB_KIND = f"{RLJOB_KIND}.{API_GROUP}"


SET_KIND = "StatefulSet.apps"


REPLICA_SET_KIND = "ReplicaSet.apps"
"""As `Controller.kind` has them."""


MOST_NAMED = 8
"""Of a job that was deleted with `--cascade=orphan` two dozen objects are left: more names add nothing."""


class ObjectHolder(Enum):
    """Who has the name."""

    JOB = "job"
    """This job."""
    PASSING = "passing"
    """An earlier job of the same name, or this job's object that is being deleted: the garbage collector takes it."""
    OTHER = "other"
    """Foreign, or without a controller: it is not to be touched."""


@dataclass(frozen=True, slots=True, order=True)
class Foreign:
    """What stands in a job's way."""

    kind: str
    name: str
    belongs_to: str = ""
    """Kind and name of its controller."""
    other_run: str = ""
    """Of a claim that an earlier job of this name has left: why its checkpoints are not this job's."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" (of {self.belongs_to})" if self.belongs_to else "")


def holder(view: OwnedView, job: JobKey, uid: str, run: str = "") -> ObjectHolder:
    """Who has the name of `view`, seen by the job with this uid and run."""
    controller = view.controller
    if controller is None:
        return _keeper(view, uid, run)
    if controller.uid == uid:
        return ObjectHolder.PASSING if view.deleting else ObjectHolder.JOB
    passes = is_earlier(controller, job) or _goes_with_its_set(view, controller, job)
    return ObjectHolder.PASSING if passes else ObjectHolder.OTHER


def _goes_with_its_set(view: OwnedView, controller: Controller, job: JobKey) -> bool:
    """Whether it is the volume of a control Redis whose set has made it (release 0.2.0) and is going, or gone."""
    return (view.kind, controller.kind, controller.name) == (CLAIMS.kind, SET_KIND, control_name(job.name))


def _keeper(view: OwnedView, uid: str, run: str) -> ObjectHolder:
    """Holder of an object without a controller: foreign, except a retained checkpoint claim."""
    claim = view.claim
    if claim is None or not claim.run:
        return ObjectHolder.OTHER
    if view.deleting:
        return ObjectHolder.PASSING
    return ObjectHolder.JOB if claim.run_of == uid or claim.run == run else ObjectHolder.OTHER


def is_earlier(controller: Controller, job: JobKey) -> bool:
    """Whether it is an earlier job of this name: it is gone, or this one would not have the name."""
    return controller.kind == JOB_KIND and controller.name == job.name


def control_claimed_by(job: JobKey, there: Mapping[tuple[str, str], OwnedView]) -> ClaimedBy:
    """Maker of the claim of a job's control Redis, by its set, or by what a set that is gone has left. Pure."""
    known = there.get((STATEFUL_SETS.kind, control_name(job.name)))
    if known is not None:
        return ClaimedBy.SET if known.makes_claims else ClaimedBy.JOB
    claim = there.get((CLAIMS.kind, control_claim_name(job.name)))
    return ClaimedBy.SET if claim is not None and claim.controller is None else ClaimedBy.JOB


def foreign(view: OwnedView, annotations: Mapping[str, str] | None = None) -> Foreign:
    """Describes a foreign object, where the job's own would have these annotations."""
    other_run = ""
    if view.controller is None and view.claim is not None and view.claim.run:
        other_run = _difference(view.claim.spec, (annotations or {}).get(ANNOTATION_SPEC, ""))
    return Foreign(view.kind, view.name, named(view.controller), other_run)


def _difference(earlier: str, wanted: str) -> str:
    """What makes two specs two runs."""
    before, now = read_retained_spec(earlier), read_retained_spec(wanted)
    changes = run_differences(before, now) if before is not None and now is not None else []
    if not changes:
        return "its spec differs in a field that cannot change"
    return ", ".join(f"spec.{change.field}: {change.new!r} differs from {change.old!r}" for change in changes)


def named(controller: Controller | None) -> str:
    """Kind and name of a controller; "" of none."""
    return "" if controller is None else f"{controller.kind.partition('.')[0]} {controller.name}"


def sentence(found: Collection[Foreign], job: JobKey) -> str:
    """What is in the way and the cure. The same for the same objects, in whatever order they were found."""
    each = sorted(set(found))
    claim = checkpoint_claim_name(job.name)
    use, runs = "", [one.other_run for one in each if one.other_run]
    if not runs and any((one.kind, one.name) == (CLAIMS.kind, claim) for one in each):
        use = f", or, to keep checkpoints on that volume, set spec.checkpoint.volume.claimName to {claim}"
    return (
        f"names of this job's objects are taken by what is not its own: {_listed(each)}. Nothing is done to that, and "
        f"nothing of the job is started. Delete it, or give the job another name{use}; the job then goes on by itself"
        + "".join(_of_other_run(claim, run, job) for run in runs)
    )


def _of_other_run(claim: str, run: str, job: JobKey) -> str:
    return (
        f". {claim} keeps the checkpoints of an earlier job of this name, which was another run: {run}. Set that back "
        f"to train on from them, or begin a new job with their weights: rljob clone {job.name} --from-checkpoint. They "
        "go with the claim"
    )


PATIENCE_SECONDS = 60.0
"""For the garbage collector. What it has not begun to delete by then is named, whatever may take it away."""


def earlier_pods_sentence(pods: Sequence[PodView]) -> str:
    """What a job waits for that has the name of an earlier one."""
    if not pods:
        return "objects of an earlier job of this name are still being deleted; the job begins when they are gone"
    names = _listed(sorted(pod.name for pod in pods))
    return f"pods of an earlier job of this name are still there: {names}; the job begins when they are gone"


def _listed(names: Sequence[object]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(str, names[:MOST_NAMED])) + more


class OrphanedPods:
    """What one job waits for, and since when."""

    def __init__(self, api: Api, key: JobKey, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._key = key
        self._clock = clock
        self._since: float | None = None

    def are_gone(self) -> None:
        """The job waits no more."""
        self._since = None

    async def stranded(self, pods: Sequence[PodView]) -> list[Foreign]:
        """Pods, or what makes them, that no controller deletes."""
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
