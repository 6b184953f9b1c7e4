"""What the supervisor (or operator) reads: `/v1/status` and `/v1/events`."""

from enum import StrEnum
from typing import Annotated

from rljob_api.base import FEW_NAMES, ONE_PROBLEM, OPEN, BoundedText, WireModel
from rljob_api.names import Epoch, Lineage, WeightVersion
from rljob_api.wire.epochs import DesiredState, PodOrder
from rljob_api.wire.failures import Failure
from rljob_api.wire.identity import PodKey, WeightId
from rljob_api.wire.launchers import Engines, RankProcess
from rljob_api.wire.ranks import Busy, RankState, StepReport
from rljob_api.wire.turns import StopReached


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
    waiting: BoundedText | None
    holds: WeightId | None


class PodObservation(WireModel):
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
    processes: Annotated[list[RankProcess], ONE_PROBLEM]
    ranks: Annotated[list[RankObservation], ONE_PROBLEM]
    engines: Engines = []


class RoomMade(WireModel):
    """What was dropped since storage was full, as last reported."""

    rows: int
    """Dropped so in all, since the control state began; another number means a new report."""
    message: BoundedText


class QueueObservation(WireModel):
    """Counts of the queue."""

    groups_issued: int
    """Groups in partitions >= the published version (what capacity counts)."""
    groups_capacity: int
    rows_ready: Annotated[dict[str, int], FEW_NAMES]
    """Task -> rows ready and unclaimed, over all partitions."""
    withheld: str | None
    """Why tickets are not given out now: Draining | Staleness | Capacity | Memory | NoneOpen | None."""
    draining_since: float | None = None
    """Unix time of the drain that is in force."""
    drained_until: float | None = None
    """Unix time at which the last drain was taken back. Of a coordinator before 0.3: later ones count that as an
    advance (`progress_age_seconds`), since no clock of another machine has to be read for it."""
    room: RoomMade | None = None
    """None: storage was never so full that rows had to go."""


class DemandObservation(WireModel):
    """How long the actor was starved and rollouts stood idle: sums over all their ranks, which only grow."""

    since: float
    """Unix time at which the coordinator began to count; two of these can be compared only if it is the same."""
    at: float
    """Unix time of this count, the end of a step."""
    step: int
    """That step."""
    actor_seconds: float
    """That the actor's ranks have run."""
    starved_seconds: float
    """Of them, those in which a rank waited for rows, its own or another's."""
    rollout_seconds: float
    """That rollout ranks have run."""
    withheld_seconds: float
    """Of them, the part of an engine's capacity that was idle since tickets were withheld."""


class ServerState(StrEnum):
    """The control Redis as the coordinator has it."""

    OPEN = "Open"
    OPENING = "Opening"
    LOST = "ControlStateLost"
    """A tail of the control state is lost: only a global restart from the record file opens it."""


class EvaluationReport(WireModel):
    """What an evaluation has found."""

    version: WeightVersion
    samples: int
    metrics: Annotated[dict[str, float], FEW_NAMES] = {}
    """`eval/SET/METRIC`, and `eval/SET/SOURCE/METRIC`."""


class SetFigure(WireModel):
    """The main figure of a set of an evaluation."""

    name: str
    """The set's."""
    metric: str
    """mean@k."""
    value: float


class EvaluationObservation(WireModel):
    """The last evaluation of a version that is still part of the job's history."""

    version: WeightVersion
    sets: Annotated[list[SetFigure], ONE_PROBLEM] = []


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
    stop: StopReached | None = None
    """None while the job is to go on."""
    step: int | None
    """Last step reported in the current epoch's history."""
    last_step: StepReport | None
    evaluation: EvaluationObservation | None = None
    is_evaluating_last: bool = False
    """The last version is recorded, and its evaluation is not over: the job is complete once it is."""
    pods: Annotated[list[PodObservation], ONE_PROBLEM]
    failures: Annotated[list[Failure], ONE_PROBLEM]
    """Not yet acknowledged, oldest first."""
    queue: QueueObservation
    last_event: int
    desired: DesiredState | None = None
    """What was accepted last; None before the first."""
    earlier_epoch: Epoch = Epoch(0)
    """While no epoch is open: the last one in which the checkpoints here were trained on, by an earlier job of this
    name or before the control state was lost. The next one must be above it."""
    progress_age_seconds: float
    """Since any rank reported that it brought the job forward, a drain was taken back, or the coordinator began."""
    demand: DemandObservation | None = None
    """As of the end of the last step; None before the first step that was reported to this coordinator."""
    beat_interval_seconds: float
    """How often ranks beat in this epoch."""


class EventKind(StrEnum):
    """What the coordinator can report."""

    EPOCH_OPENED = "EpochOpened"
    FAILURE_REPORTED = "FailureReported"
    ROLE_READY = "RoleReady"
    """Every rank of a role is Ready in the current epoch and generation."""
    STEP_TRAINED = "StepTrained"
    PUBLISHED = "Published"
    EVALUATED = "Evaluated"
    """All samples of an evaluation of a version are scored."""
    EVALUATION_UNFINISHED = "EvaluationUnfinished"
    """The job was saved while a version was being evaluated: that goes on with the job."""
    RECORDED = "CheckpointRecorded"
    CHECKPOINT_GIVEN_UP = "CheckpointGivenUp"
    """A rank's part of it did not come in time; the record before stands."""
    CHECKPOINT_DAMAGED = "CheckpointDamaged"
    """A checkpoint is not what was written: the epoch begins with an older one, and the damaged folder is retained."""
    WRONG_WEIGHTS = "WrongWeights"
    """An engine reported a version, and had other weights; nothing that it made of them is trained on."""
    ENGINE_STALLED = "EngineStandsStill"
    """An engine answered and made no token of what it had; its rank has ended it."""
    TOOL_TEXT_CUT = "ToolTextCut"
    """A rollout function gave the tokenizer a text of which most has no room."""
    FUNCTION_BLOCKS = "FunctionBlocks"
    """A rollout function blocks the event loop that all of its samples share."""
    STEP_SKIPPED = "StepSkipped"
    """An optimizer step whose loss or gradient was not finite."""
    GRADIENT_SPIKE = "GradientSpike"
    """An optimizer step whose gradient was far larger than those before it."""
    TEMPLATE_NOT_SAVED = "ChatTemplateNotSaved"
    """The actor cannot read data.chatTemplate.file, so that checkpoints have the tokenizer's own template."""
    REWARD_RETRIED = "RewardRetried"
    """A reward has failed for answers and was asked again for them."""
    NOTHING_LEARNT = "NothingLearnt"
    """Steps in a row have left every sample out of the loss."""
    NO_VARIANCE = "NoVariance"
    """In steps in a row all samples of every prompt had one reward."""
    ENTROPY_COLLAPSED = "EntropyCollapsed"
    """In steps in a row the policy always gave the same answer, and not the right one."""
    NO_GRADIENT = "NoGradient"
    """Steps in a row had a gradient of 0, and rewards that differ."""
    ALL_CUT_OFF = "AllCutOff"
    """In steps in a row every answer was cut off, and none had a reward above 0."""
    MISMATCH_RISING = "MismatchRising"
    """In steps in a row engine and trainer differed far more than in the first ones."""
    METRIC_MISSING = "MetricMissing"
    """A metric of stopWhen or checkpoint.keepBest was not reported."""
    UNIT_LOST = "StorageUnitLost"
    ROWS_LOST = "RowsLost"
    """A storage unit that was not restarted no longer has some of its chunks."""
    ROWS_DROPPED = "RowsDropped"
    """Storage was full, and rows went to make room."""
    COLUMNS_CHANGED = "ColumnsChanged"
    """A job that was resumed has another table of columns than its rows: they go on, or are generated again."""
    INPUT_CHANGED = "InputChanged"
    """A file that the run reads is not what it was."""
    PROMPT_SET_ASIDE = "PromptSetAside"
    STATE_LOST = "ControlStateLost"
    POD_CHANGED = "PodChanged"
    QUEUE_DRAINS = "QueueDrains"
    """No ticket is given until a user takes that back."""
    TICKETS_GIVEN = "TicketsGiven"


class CoordinatorEvent(WireModel):
    """One of `GET /v1/events?after=ID&wait=SECONDS` (ids grow by one, kept in the control Redis, newest 10000)."""

    id: int
    kind: Annotated[EventKind | str, OPEN]
    at: float
    epoch: Epoch
    message: BoundedText
    step: StepReport | None = None
    evaluation: EvaluationReport | None = None
    failure: Failure | None = None
    pod: PodKey | None = None
    """For RoleReady and PodChanged."""


class EventPage(WireModel):
    """Answer of `/v1/events`."""

    events: Annotated[list[CoordinatorEvent], ONE_PROBLEM]
    oldest: int
