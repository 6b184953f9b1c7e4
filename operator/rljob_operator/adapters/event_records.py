"""From the core's events to the API's: which are warnings, and what was done about them. Pure."""

from rljob_operator.adapters.events import NORMAL, WARNING, EventRecord
from rljob_operator.core import Event, Reason

_NORMAL = frozenset(
    {
        Reason.STARTED,
        Reason.RESUMED,
        Reason.ACCEPTED,
        Reason.READY,
        Reason.EPOCH_OPENED,
        Reason.COORDINATOR_REACHABLE,
        Reason.SPEC_CHANGED,
        Reason.RESTART_REQUESTED,
        Reason.POD_OUTDATED,
        Reason.SCALED_UP,
        Reason.SCALED_DOWN,
        Reason.DRAINING,
        Reason.SUSPENDED,
        Reason.INTERRUPTED,
        Reason.SUCCEEDED,
        Reason.EARLIER_LIFE,
    }
)
"""What somebody wished for, or is good news. Everything else went wrong."""


def record_of(event: Event) -> EventRecord:
    """The event as it is emitted; its action is the scope of what was restarted."""
    action = f"Restart{event.scope.value}" if event.scope is not None else "Decide"
    return EventRecord(NORMAL if event.reason in _NORMAL else WARNING, event.reason.value, action, event.message)


def remark(reason: str, message: str) -> EventRecord:
    """Good to know of a job that is accepted; nothing is wrong."""
    return EventRecord(NORMAL, reason, "Accept", message)


def warning(reason: str, message: str) -> EventRecord:
    """A warning that is no decision of the core."""
    return EventRecord(WARNING, reason, "Accept", message)
