"""Pods that were lost in an epoch before it was seen to be open.

An epoch is opened and its orders are given; then the coordinator does not answer for a while. A pod that is lost
meanwhile looks as if it belonged to the epoch before, and is replaced without a restart. When the coordinator answers
again, it tells which orders it had: a pod that had one may have carried it out. Pure; called by `restart`.
"""

from rljob_api.status import PodStatus, RLJobStatus
from rljob_api.wire.epochs import PodOrder
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import staying
from rljob_operator.core.verdicts import Cause


def lost_unseen(observed: Observed, status: RLJobStatus) -> list[Cause]:
    """A cause for each of them, in the one decision that sees the epoch open for the first time.

    Nobody knows any more why they were lost: they do not count.
    """
    restart = status.restart
    desired = observed.coordinator.desired if observed.coordinator is not None else None
    is_first_sight = observed.status.restart.opened < restart.opened == restart.epoch
    if not is_first_sight or desired is None or desired.epoch != restart.epoch:
        return []
    given = {order.pod: order for order in desired.pods}
    return [
        Cause(
            id=f"unseen/{order.pod_uid}/{order.generation}",
            reason=Reason.LAUNCHER_LOST,
            pod=key,
            message=f"{key} was lost in epoch {restart.epoch} while the coordinator did not answer",
            lost=True,
            counts=False,
        )
        for key, pod in staying(status)
        if (order := given.get(key)) is not None and _is_given_up(pod, order)
    ]


def _is_given_up(pod: PodStatus, order: PodOrder) -> bool:
    """Whether the life that this order was for is over: another pod has the number, or another life of the same."""
    if not order.pod_uid or order.generation >= pod.generation:
        return False
    return order.pod_uid == _uid(pod.lost_life) or order.pod_uid != _uid(pod.life)


def _uid(life: str) -> str:
    return life.rpartition("/")[0]
