"""The queue of a job: what Kueue's Workload of it says, and whether it holds the job back.

A hold of the queue is treated as `spec.suspend` is: what trains saves, every pod goes, and the job goes on from its
checkpoint when nothing holds it any more. Pure. `decide` asks for the hold; the adapter writes the Workload by it.
"""

from dataclasses import dataclass

from rljob_api.status import ConditionType, QueueStatus, RLJobStatus
from rljob_operator.core.conditions import find, terminal, with_condition, without
from rljob_operator.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Hold:
    """Why nothing of a job shall run."""

    reason: Reason
    message: str


BY_USER = Hold(Reason.SUSPENDED, "suspended")
"""`spec.suspend`. Its message is the beginning of a sentence."""


@dataclass(frozen=True, slots=True)
class QueueFact:
    """State of the Workload of a job with a queue."""

    hold: Hold | None
    """None: it is admitted."""
    admission: QueueStatus | None = None
    """By which the job starts; None while it is held."""
    wanted: int = 0
    """Rollouts that the spec may come to."""
    granted: int | None = None
    """Rollouts that it is admitted for; None while it is held."""

    @property
    def most_rollouts(self) -> int:
        """Rollouts that there may be."""
        return self.wanted if self.granted is None else min(self.granted, self.wanted)


def with_admitted(fact: QueueFact | None, status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` with the condition Admitted, which an ended job keeps as it was."""
    kind = ConditionType.ADMITTED
    if terminal(status) is not None:
        return status
    if fact is None:
        return status if find(status, kind) is None else without(status, [kind])
    if fact.hold is not None:
        return with_condition(status, kind, now, true=False, reason=fact.hold.reason, message=fact.hold.message)
    message = "the job is admitted" + (
        "" if fact.admission is None else f" by ClusterQueue {fact.admission.cluster_queue}"
    )
    if fact.most_rollouts < fact.wanted:
        message += (
            f" for {fact.most_rollouts} of {fact.wanted} rollouts: the others come when it is admitted again, as after"
            " spec.suspend true and then false"
        )
    return with_condition(status, kind, now, true=True, reason=Reason.ADMITTED, message=message)
