"""What the supervisor (or operator) reads: `/v1/status` and `/v1/events`."""

from enum import StrEnum
from typing import Annotated

from rljob_api.base import OPEN, WireModel
from rljob_api.names import Epoch, Lineage, WeightVersion
from rljob_api.wire.epochs import DesiredState, PodOrder
from rljob_api.wire.failures import Failure
from rljob_api.wire.identity import PodKey, WeightId
from rljob_api.wire.launchers import EnginesModel, RankProcess
from rljob_api.wire.ranks import Busy, RankState, StepReport


class RankObservation(WireModel):
    """A registered rank."""

    rank: int
    incarnation: str
    epoch: Epoch
    generation: int
    pid: int
    state: RankState
    beat_age_seconds: float
    """Since the last beat or registration; counted from the coordinator's start after it was restarted."""
    busy: Busy | None
    busy_left_seconds: float | None
    waiting: str | None
    holds: WeightId | None


class PodObservation(EnginesModel):
    """A pod as its launcher reports it."""

    pod: PodKey
    pod_uid: str
    launcher: str
    launcher_pid: int
    container_restart_count: int
    poll_age_seconds: float
    is_heard: bool = True
    """Whether it has reported to this coordinator; if not, what it carries and runs is not known."""
    carried: PodOrder | None
    processes: list[RankProcess]
    ranks: list[RankObservation]


class RoomMade(WireModel):
    """What went since storage was full, as it was told last."""

    rows: int
    """That went so in all, since the control state began; another number means that something new is told."""
    message: str


class QueueObservation(WireModel):
    """Counts of the queue."""

    groups_issued: int
    """Groups in partitions >= the published version (what capacity counts)."""
    groups_capacity: int
    rows_ready: dict[str, int]
    """Task -> rows ready and unclaimed, over all partitions."""
    withheld: str | None
    """Why tickets are not given out now: Draining | Staleness | Capacity | Memory | NoneOpen | None."""
    draining_since: float | None = None
    """Unix time of the drain that is in force."""
    drained_until: float | None = None
    """Unix time at which the last drain was taken back."""
    room: RoomMade | None = None
    """None: storage was never so full that rows had to go."""


class ServerState(StrEnum):
    """The control Redis as the coordinator has it."""

    OPEN = "Open"
    OPENING = "Opening"
    LOST = "ControlStateLost"
    """A tail of the control state is lost: only a global restart from the record file opens it."""


class CoordinatorStatus(WireModel):
    """`GET /v1/status`."""

    server: ServerState
    epoch: Epoch
    lineage: Lineage
    decision_id: str
    published: WeightVersion | None
    recorded: WeightVersion | None
    """c of the last checkpoint record; None before checkpoint 0."""
    recorded_folder: str | None = None
    """Its folder, below the checkpoint path."""
    step: int | None
    """Last step reported in the current epoch's history."""
    last_step: StepReport | None
    pods: list[PodObservation]
    failures: list[Failure]
    """Not yet acknowledged, oldest first."""
    queue: QueueObservation
    last_event: int
    desired: DesiredState | None = None
    """What was accepted last; None before the first."""
    beat_interval_seconds: float = 0.5
    """How often ranks beat in this epoch; a coordinator of an earlier version does not say it."""


class EventKind(StrEnum):
    """What can be told by the coordinator."""

    EPOCH_OPENED = "EpochOpened"
    FAILURE_REPORTED = "FailureReported"
    ROLE_READY = "RoleReady"
    """Every rank of a role is Ready in the current epoch and generation."""
    STEP_TRAINED = "StepTrained"
    PUBLISHED = "Published"
    RECORDED = "CheckpointRecorded"
    CHECKPOINT_GIVEN_UP = "CheckpointGivenUp"
    """A rank's part of it did not come in time; the record before stands."""
    UNIT_LOST = "StorageUnitLost"
    ROWS_LOST = "RowsLost"
    """A storage unit that was not restarted no longer has some of its chunks."""
    ROWS_DROPPED = "RowsDropped"
    """Storage was full, and rows went to make room."""
    PROMPT_SET_ASIDE = "PromptSetAside"
    STATE_LOST = "ControlStateLost"
    POD_CHANGED = "PodChanged"
    QUEUE_DRAINS = "QueueDrains"
    """No ticket is given until somebody takes that back."""
    TICKETS_GIVEN = "TicketsGiven"


class CoordinatorEvent(WireModel):
    """One of `GET /v1/events?after=ID&wait=SECONDS` (ids grow by one, kept in the control Redis, newest 10000)."""

    id: int
    kind: Annotated[EventKind | str, OPEN]
    at: float
    epoch: Epoch
    message: str
    step: StepReport | None = None
    failure: Failure | None = None
    pod: PodKey | None = None
    """For RoleReady and PodChanged."""


class EventPage(WireModel):
    """Answer of `/v1/events`."""

    events: list[CoordinatorEvent]
    oldest: int
