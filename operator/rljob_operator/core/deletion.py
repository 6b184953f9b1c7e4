"""Deletion: what the status says of a job that is being deleted and is still there, since a finalizer keeps it.

The job's pods end, as they do where no finalizer keeps it: a deletion frees what the job holds. Called by the
operator in place of `decide`: nothing is begun or restarted any more. Pure.
"""

from collections.abc import Sequence

from rljob_api.status import ConditionType, Phase, RLJobStatus
from rljob_operator.core.conditions import find, with_condition
from rljob_operator.core.decision import Event
from rljob_operator.core.membership import counted, with_pods
from rljob_operator.core.reachability import not_asked
from rljob_operator.core.reasons import Reason

ORPHAN = "orphan"
"""The garbage collector's finalizer for a deletion that leaves everything that the job is made of."""

_BY_THE_COLLECTOR = "foregroundDeletion"
"""Its finalizer for a deletion that waits until what the job is made of is gone."""

_OVER = (ConditionType.RESTARTING, ConditionType.STALLED)


def leaves_everything(finalizers: Sequence[str]) -> bool:
    """Whether the deletion is to leave pods and objects of the job (`kubectl delete --cascade=orphan`)."""
    return ORPHAN in finalizers


def with_deletion(status: RLJobStatus, finalizers: Sequence[str], now: float, *, has_pods: bool) -> RLJobStatus:
    """`status` of a job that is being deleted, while pods of it end and once none is left."""
    reason, message = Reason.DELETING.value, f"the job is being deleted, {_waits_for(finalizers, has_pods=has_pods)}"
    status = with_pods(not_asked(status), lambda _, pod: pod.model_copy(update={"ready": False}))
    if not has_pods:
        status = status.model_copy(update={"roles": [counted(role, []) for role in status.roles]})
    for kind in (ConditionType.READY, *(each for each in _OVER if find(status, each) is not None)):
        status = with_condition(status, kind, now, true=False, reason=reason, message=message)
    status = with_condition(status, ConditionType.PROGRESSING, now, true=has_pods, reason=reason, message=message)
    return status.model_copy(update={"phase": Phase.DELETING, "reason": reason, "waiting_since": None})


def deletion_event(finalizers: Sequence[str], now: float) -> Event:
    """The event that names what keeps the job."""
    message = f"the job is being deleted, {_waits_for(finalizers, has_pods=True)}"
    return Event(now, Reason.DELETING, message, once=f"deletion/{','.join(finalizers)}")


def _waits_for(finalizers: Sequence[str], *, has_pods: bool) -> str:
    foreign = [name for name in finalizers if name != _BY_THE_COLLECTOR]
    pods = "its pods end" if has_pods else "its pods have ended"
    if not foreign:
        return f"{pods}; it goes when everything that it is made of is gone"
    kind = "the finalizer" if len(foreign) == 1 else "the finalizers"
    return (
        f"{pods}; {kind} {', '.join(foreign)} must be removed by the program that has set it before the job goes. What "
        "is applied under its name until then goes with it"
    )
