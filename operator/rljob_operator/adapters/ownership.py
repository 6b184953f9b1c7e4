"""Ownership: whose an object is that has a name which a job's object is to have. Pure.

Asked before anything is written to an object. Only what the job controls is applied or deleted; who only bears its
labels, or names it as an owner that controls nothing, belongs to somebody else. A checkpoint claim that stays when its
job goes has no owner: it is the job's that it names, and after that a later one's of the same name and run.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from rljob_api.cluster import ANNOTATION_SPEC, API_GROUP, checkpoint_claim_name
from rljob_api.run_identity import differences, read_kept_spec
from rljob_operator.adapters.resources import CLAIMS
from rljob_operator.adapters.views import Controller, JobKey, OwnedView

JOB_KIND = f"RLJob.{API_GROUP}"
SET_KIND = "StatefulSet.apps"
REPLICA_SET_KIND = "ReplicaSet.apps"
"""As `Controller.kind` has them."""

MOST_NAMED = 8
"""Of a job that was deleted with `--cascade=orphan` two dozen objects are left: more names say nothing new."""


class Holder(Enum):
    """Who has the name."""

    JOB = "job"
    """This job."""
    PASSING = "passing"
    """An earlier job of the same name, or this job's object that is being deleted: the garbage collector takes it."""
    OTHER = "other"
    """Anybody else, or nobody: it is not to be touched."""


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


def holder(view: OwnedView, job: JobKey, uid: str, run: str = "") -> Holder:
    """Who has the name of `view`, seen by the job with this uid and run."""
    controller = view.controller
    if controller is None:
        return _keeper(view, uid, run)
    if controller.uid == uid:
        return Holder.PASSING if view.deleting else Holder.JOB
    return Holder.PASSING if is_earlier(controller, job) else Holder.OTHER


def _keeper(view: OwnedView, uid: str, run: str) -> Holder:
    """Of what nobody controls: nobody's, unless it is a claim that stays when its job goes."""
    claim = view.claim
    if claim is None or not claim.run:
        return Holder.OTHER
    if view.deleting:
        return Holder.PASSING
    return Holder.JOB if claim.run_of == uid or claim.run == run else Holder.OTHER


def is_earlier(controller: Controller, job: JobKey) -> bool:
    """Whether it is an earlier job of this name: it is gone, or this one would not have the name."""
    return controller.kind == JOB_KIND and controller.name == job.name


def foreign(view: OwnedView, annotations: Mapping[str, str] | None = None) -> Foreign:
    """An object of somebody else, in words, where the job's own would have these annotations."""
    other_run = ""
    if view.controller is None and view.claim is not None and view.claim.run:
        other_run = _difference(view.claim.spec, (annotations or {}).get(ANNOTATION_SPEC, ""))
    return Foreign(view.kind, view.name, named(view.controller), other_run)


def _difference(kept: str, wanted: str) -> str:
    """What makes two specs two runs."""
    before, now = read_kept_spec(kept), read_kept_spec(wanted)
    changes = differences(before, now) if before is not None and now is not None else []
    if not changes:
        return "its spec differs in a field that cannot change"
    return ", ".join(f"spec.{change.field}: {change.new!r} differs from {change.old!r}" for change in changes)


def named(controller: Controller | None) -> str:
    """Kind and name of a controller; "" of none."""
    return "" if controller is None else f"{controller.kind.partition('.')[0]} {controller.name}"


def sentence(found: Collection[Foreign], job: JobKey) -> str:
    """What is in the way and the cure. The same for the same objects, in whatever order they were found."""
    each = sorted(set(found))
    first = ", ".join(str(one) for one in each[:MOST_NAMED])
    rest = f" and {len(each) - MOST_NAMED} more" if len(each) > MOST_NAMED else ""
    claim = checkpoint_claim_name(job.name)
    use, runs = "", [one.other_run for one in each if one.other_run]
    if not runs and any((one.kind, one.name) == (CLAIMS.kind, claim) for one in each):
        use = f", or, to keep checkpoints on that volume, set spec.checkpoint.volume.claimName to {claim}"
    return (
        f"names of this job's objects are taken by what is not its own: {first}{rest}. Nothing is done to that, and "
        f"nothing of the job is started. Delete it, or give the job another name{use}; the job then goes on by itself"
        + "".join(_of_other_run(claim, run, job) for run in runs)
    )


def _of_other_run(claim: str, run: str, job: JobKey) -> str:
    return (
        f". {claim} keeps the checkpoints of an earlier job of this name, which was another run: {run}. Set that back "
        f"to train on from them, or begin a new job with their weights: rljob clone {job.name} --from-checkpoint. They "
        "go with the claim"
    )
