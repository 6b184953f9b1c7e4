"""What the queue raises.

QueueError
├── Fenced               this incarnation is over (older epoch, older incarnation): stop, write nothing
│   └── Replaced         raised to a queue admin: a later one, of another coordinator, has taken over
├── WrongEpoch           an epoch that is not above the current one cannot be opened
├── DeadWeight           a weight that is not alive cannot be published or recorded
├── Incomplete           a version whose turn has not come (untrained rows, not published, not newer than the record)
├── AttemptsExhausted    a group was drawn maxAttempts times and none was accepted
├── Mismatch             a training batch was asked for in two ways, or committed unclaimed: a fault of the caller
├── LeaseLost            the lease ended before its put: throw the results away and claim again
├── TicketLost           the ticket came back meanwhile: throw the group away
├── NotOpen              the control Redis was restarted and is not open yet: retried inside, raised at the deadline
├── ControlUnreachable   control Redis does not answer within the deadline (who waited for what)
│   └── ControlRefused   it answers, and does not let this client in: a wrong password, too many connections
├── StorageUnreachable   a storage unit does not answer within the deadline
├── RowsLost             bytes of claimed rows are gone, or damaged and deleted: reported to the coordinator
├── StorageFull          no unit has room for an issued ticket's rows within the deadline
└── CorruptChunk         bytes do not match their header, length or checksum
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rljob_workers.transfer_queue.row_format import ChunkRef


class QueueError(Exception):
    """Base of everything the queue raises."""


class Fenced(QueueError):
    """This incarnation is over; the message has the reason."""


class Replaced(Fenced):
    """Another coordinator has taken over: the one that gets this must end."""


class WrongEpoch(QueueError):
    """The epoch asked for is not above the current one; the message has both."""


class DeadWeight(QueueError):
    """The weight is not alive."""


class Incomplete(QueueError):
    """The version's turn has not come; the message names what is missing."""


class AttemptsExhausted(QueueError):
    """A group was drawn too often."""


class Mismatch(QueueError):
    """A training batch was asked for in two ways, or committed unclaimed."""


class LeaseLost(QueueError):
    """The lease ended before its results were put."""


class TicketLost(QueueError):
    """The ticket was taken back before its group was put."""


class NotOpen(QueueError):
    """The control Redis was restarted and the coordinator has not opened it."""


class ControlUnreachable(QueueError):
    """The control Redis did not answer in time."""


class ControlRefused(ControlUnreachable):
    """The control Redis answered, and did not let this client in."""


class StorageUnreachable(QueueError):
    """A storage unit did not answer in time."""


class RowsLost(QueueError):
    """Bytes that were committed are gone; `units` are the storage units that no longer have them."""

    def __init__(self, message: str, units: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.units = tuple(units)


class StorageFull(QueueError):
    """No room for rows that must be stored."""


class CorruptChunk(QueueError):
    """Bytes do not match their header; `chunk` is the chunk that they were read from, None outside a chunk."""

    def __init__(self, message: str, chunk: ChunkRef | None = None) -> None:
        super().__init__(message)
        self.chunk = chunk
