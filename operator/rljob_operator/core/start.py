"""The start of a job by its user: always a new epoch, so that nothing of an earlier start can speak for this one."""

from collections.abc import Mapping

from rljob_api.names import Epoch, Role
from rljob_api.status import ConditionType, PodStatus, RLJobStatus, RoleStatus
from rljob_operator.core.conditions import without
from rljob_operator.core.decision import Event
from rljob_operator.core.identity import decision_id
from rljob_operator.core.reasons import Reason


def begin(last: RLJobStatus, replicas: Mapping[Role, int], now: float) -> tuple[RLJobStatus, Event]:
    """The status to persist before anything is started, after a job whose last status was `last`.

    Failures and restarts that counted are forgotten: the user has looked at them. `global_restarts` goes on counting.
    """
    epoch = Epoch(last.restart.epoch + 1)
    reason = Reason.STARTED if last.restart.epoch == 0 else Reason.RESUMED
    message = f"epoch {epoch} begins" + ("" if reason is Reason.STARTED else f" after epoch {last.restart.epoch}")
    restart = last.restart.model_copy(
        update={
            "epoch": epoch,
            "decision_id": decision_id(epoch, reason, ()),
            "counted_towards_max": 0,
            "consecutive": 0,
            "backoff_until": None,
            "scope": None,
            "reason": message,
            "decided_at": now,
        }
    )
    roles = [
        RoleStatus(name=role, replicas=count, ready=0, failures=0, pods=[_new_pod(role, n, now) for n in range(count)])
        for role, count in replicas.items()
    ]
    status = without(last, ConditionType).model_copy(update={"restart": restart, "roles": roles})
    return status, Event(now, reason, message)


def _new_pod(role: Role, replica: int, now: float) -> PodStatus:
    return PodStatus(name=f"{role.value}-{replica}", ready=False, generation=0, ordered_at=now)
