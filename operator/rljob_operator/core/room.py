"""Room: storage was full, and the queue gave rows up. Told, since only the user can give it more.

Pure. What goes, and how often that is told, is the coordinator's.
"""

from rljob_api.status import RLJobStatus
from rljob_operator.core.decision import Event
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason


def room_made(observed: Observed, status: RLJobStatus, now: float) -> tuple[RLJobStatus, tuple[Event, ...]]:
    """Says each word of the coordinator once; the status remembers the last one by its number of rows."""
    room = observed.coordinator.queue.room if observed.coordinator is not None else None
    if room is None or room.rows == status.training.rows_dropped:
        return status, ()
    training = status.training.model_copy(update={"rows_dropped": room.rows})
    event = Event(now, Reason.ROWS_DROPPED, room.message)
    return status.model_copy(update={"training": training}), (event,)
