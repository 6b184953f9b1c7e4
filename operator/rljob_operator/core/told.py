"""Told: what is told although it was not decided in this turn. Pure.

What the coordinator tells and nobody decides on; the last decisions of a supervisor that may have died before it told
them. Both sinks, a run's journal and a cluster's Events, take from here what they tell.
"""

from collections.abc import Mapping

from rljob_api.names import Epoch, Scope
from rljob_api.status import RLJobStatus
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.observation import CoordinatorEvent, EventKind
from rljob_operator.core.conditions import terminal
from rljob_operator.core.decision import Event
from rljob_operator.core.reasons import Reason

TOLD: Mapping[str, Reason] = {
    EventKind.UNIT_LOST: Reason.STORAGE_UNIT_LOST,
    EventKind.ROWS_LOST: Reason.ROWS_LOST,
    EventKind.PROMPT_SET_ASIDE: Reason.PROMPT_SET_ASIDE,
    EventKind.CHECKPOINT_GIVEN_UP: Reason.CHECKPOINT_GIVEN_UP,
    EventKind.CHECKPOINT_DAMAGED: Reason.CHECKPOINT_DAMAGED,
    EventKind.WRONG_WEIGHTS: Reason.WRONG_WEIGHTS,
    EventKind.ENGINE_STANDS_STILL: Reason.ENGINE_STANDS_STILL,
    EventKind.STEP_SKIPPED: Reason.STEP_SKIPPED,
}
"""The others are progress, or something is decided on them, which tells it."""

RETOLD_SECONDS = 600.0
"""What is older is not told again: a supervisor that begins has no news of it, and its event may have expired."""


def told(event: CoordinatorEvent, status: RLJobStatus) -> Event | None:
    """An event of the coordinator as one of ours, if it is to be told to the user of a job of this status."""
    reason = TOLD.get(event.kind)
    if reason is None or _is_expected(event, status):
        return None
    role = event.pod.role if event.pod is not None else None
    return Event(event.at, reason, event.message, role, once=f"{event.epoch}/{event.id}/{event.at:.6f}")


def retold(status: RLJobStatus, now: float) -> tuple[Event, ...]:
    """The last decisions, by what the status remembers of them: whoever made them may have died before telling."""
    found = []
    restart, ended = status.restart, terminal(status)
    if restart.scope == Scope.GLOBAL and restart.reason in set(Reason) and _is_recent(restart.decided_at, now):
        message = restarts_in(restart.epoch, restart.message or "")
        at = restart.decided_at or now
        found.append(Event(at, Reason(restart.reason), message, scope=Scope.GLOBAL, once=restart.decision_id))
    if ended is not None and ended.reason in set(Reason) and _is_recent(status.ended_at, now):
        found.append(Event(status.ended_at or now, Reason(ended.reason), ended.message, once=end_of(status)))
    return tuple(found)


def restarts_in(epoch: Epoch, why: str, wait: str = "") -> str:
    """The sentence of a global restart; `wait` says after how long."""
    return f"{why.rstrip('.')}; the job restarts in epoch {epoch}{wait}"


def end_of(status: RLJobStatus) -> str:
    """Names the end of a job: it has one in each epoch at most."""
    return f"end/{status.restart.epoch}"


def epoch_opened(point: RestorePoint, at: float) -> Event:
    """That an epoch is open, and from where it goes on."""
    message = (
        f"epoch {point.epoch} is open: lineage {point.lineage} from version {point.version}, "
        f"{point.kept_groups} groups kept, {point.dropped_groups} generated again"
    )
    return Event(at, Reason.EPOCH_OPENED, message, once=f"open/{point.epoch}")


def _is_expected(event: CoordinatorEvent, status: RLJobStatus) -> bool:
    """Whether a storage unit came back empty since the whole job was begun or resumed: units keep nothing over that."""
    was_begun = status.restart.scope is None
    return event.kind == EventKind.UNIT_LOST and was_begun and event.epoch < status.restart.epoch


def _is_recent(at: float | None, now: float) -> bool:
    return at is not None and now - at < RETOLD_SECONDS
