"""What people ask of the queue of a running job: `/v1/queue`, its rows, its invariants, and the drain."""

from enum import StrEnum

from pydantic import Field

from rljob_api.base import WireModel
from rljob_api.names import Epoch, Lineage, WeightVersion

MAX_PEEK_ROWS = 64
"""Rows of one look."""
MAX_PEEK_VALUES = 256
"""First values of a row that one look shows."""


class RowState(StrEnum):
    """A row, as one task sees it."""

    UNREADY = "unready"
    READY = "ready"
    CLAIMED = "claimed"
    DONE = "done"


class TaskRows(WireModel):
    """Rows of one partition as one task sees them."""

    task: str
    unready: int
    ready: int
    claimed: int
    done: int
    batches: int
    """Training batches that were fixed; 0 for a forward task."""


class PartitionStats(WireModel):
    """One partition: its groups, and its rows by task and state."""

    partition: str
    rollout_id: int
    groups_put: int
    groups_issued: int
    """Their tickets are in work."""
    groups_returned: int
    """Their tickets came back and are to be given again."""
    groups_absent: int
    """Lost after their weights were published; nothing is done before a restore."""
    groups_missing: int
    """No ticket was given yet."""
    tasks: list[TaskRows]


class TicketHolder(WireModel):
    """An incarnation with tickets in work."""

    holder: str
    """`role-replica.rank`."""
    tickets: int


class LeaseStats(WireModel):
    """Rows that a forward task works on."""

    lease: str
    task: str
    partition: str
    holder: str
    rows: int
    age_seconds: float
    """Since its claim."""
    expires_in_seconds: float
    """Unless a beat renews it."""


class TaskStats(WireModel):
    """What is in work of one task."""

    task: str
    kind: str
    """Forward | Training."""
    publishes: bool = False
    """A training task from whose steps published versions follow; one that does not may be behind them."""
    leases: int
    rows_claimed: int
    rows_ready: int
    batches: int
    """Training batches in the partitions that the queue has."""


class UnitStats(WireModel):
    """One storage unit, as it answered last."""

    unit: int
    generation: int | None
    """The mark by which its rows are known; None before it was first opened."""
    answers: bool | None
    """None: it was not asked yet, since the coordinator has only started."""
    used_bytes: int | None = None
    limit_bytes: int | None = None
    """None: it has no limit, or has not answered yet."""
    high_water_bytes: int | None = None
    """From here on no ticket is given."""
    keys: int | None = None
    received_bytes: int | None = None
    """On its connections, since it was started: what was put, and the commands."""
    sent_bytes: int | None = None
    """What was read, and the answers."""
    lost_chunks: int = 0
    """That it no longer had though it was not restarted, since the control state began."""


class QueueStats(WireModel):
    """`GET /v1/queue`."""

    job: str
    epoch: Epoch
    lineage: Lineage
    seq: int
    published: WeightVersion
    recorded: WeightVersion | None
    groups_issued: int
    groups_capacity: int
    withheld: str | None
    """Why tickets are not given out now."""
    draining_since: float | None
    """Unix time of the drain that is in force."""
    tickets_in_work: int
    tickets_returned: int
    oldest_ticket_seconds: float = 0.0
    """How long the oldest ticket is in work; 0 where none is."""
    swaps: int = 0
    """Exchanges of places (`rollout.order: Swap`), since the control state began."""
    holders: list[TicketHolder]
    partitions: list[PartitionStats]
    tasks: list[TaskStats]
    leases: list[LeaseStats]
    """Oldest first, at most 1000."""
    units: list[UnitStats]
    garbage_chunks: int
    """Chunks that nothing names any more and whose bytes are still there."""
    garbage_partitions: int
    dropped_retained_rows: int = 0
    """Kept for a restore only, and dropped when storage was full; since the control state began."""
    dropped_unclaimed_rows: int = 0
    """Dropped when storage was full, and generated again."""


class WeightSpan(WireModel):
    """The weights behind a row."""

    lineage: Lineage
    version: WeightVersion


class RowValues(WireModel):
    """The first values of one row of one field."""

    length: int
    """Elements of the row."""
    shape: list[int]
    """Of one element; empty for a number."""
    dtype: str
    values: list[int | float | bool | None] | None
    """None where the bytes are gone."""


class QueueRow(WireModel):
    """A row as it lies in the queue."""

    partition: str
    row: int
    group: int
    group_state: str
    """put | issued | returned | absent | missing."""
    lengths: dict[str, int]
    """Field that the row has -> its elements."""
    states: dict[str, RowState]
    """By task."""
    oldest: WeightSpan | None
    newest: WeightSpan | None
    field: RowValues | None = None
    """Of the field that was asked for, where the row has it."""


class QueuePeek(WireModel):
    """`GET /v1/queue/rows`: rows in their order, none of them claimed."""

    rows: list[QueueRow]
    more: bool
    """Whether there are more such rows than were asked for."""


class QueueCheck(WireModel):
    """`GET /v1/queue/check`."""

    partitions: int
    """That were looked at."""
    broken: list[str]


class Tickets(StrEnum):
    """What a drain wants of the gate."""

    GIVE = "Give"
    WITHHOLD = "Withhold"


class DrainRequest(WireModel):
    """`PUT /v1/queue/drain`. The same twice is once."""

    tickets: Tickets


class DrainState(WireModel):
    """Answer of `PUT` and `GET /v1/queue/drain`."""

    draining_since: float | None
    """Unix time; None: tickets are given."""
    waits: list[str] = Field(default=[])
    """What is not consumed and not back yet, and who has it; empty once the queue is drained."""
    stays: list[str] = Field(default=[])
    """What waits in the queue until tickets are given again."""
