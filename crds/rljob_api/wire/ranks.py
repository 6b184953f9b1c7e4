"""Between a rank and the coordinator."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.base import FEW_NAMES, BoundedText, WireModel
from rljob_api.names import Epoch, WeightVersion
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.identity import Incarnation, WeightId


class RankHello(WireModel):
    """`POST /v1/ranks`: registers an incarnation. Ends earlier ones of the rank: their leases and tickets return."""

    incarnation: Incarnation = Field(alias="life")
    pid: int
    launcher: str


class RankWelcome(WireModel):
    """What a rank needs to begin."""

    restore: RestorePoint
    published: WeightId | None
    beat_interval_seconds: float


class RankState(StrEnum):
    """How far a rank is."""

    STARTING = "Starting"
    READY = "Ready"


class Busy(WireModel):
    """Announced before anything long, so that silence is not taken for a hang."""

    what: BoundedText
    seconds: float = Field(gt=0)
    """From now, by the coordinator's clock."""


class Beat(WireModel):
    """`POST /v1/ranks/beat`, sent by the rank's own main loop."""

    incarnation: Incarnation = Field(alias="life")
    state: RankState
    busy: Busy | None = None
    waiting: BoundedText | None = None
    """Who or what this rank waits for, as text; None while it works."""
    tickets: list[int] = []
    """Ids of the tickets in work; one that is unlisted for two beats comes back."""
    still_seconds: float = Field(default=0.0, ge=0)
    """For which the rank's engine has made no token of what it has; 0 where nothing is to be expected of it."""
    leases: list[str] = []
    """Leases in work; they are renewed."""
    holds: WeightId | None = None
    counters: dict[str, float] = {}
    """Monotonic counters and gauges of this rank, for /metrics (bounded, known names)."""
    progress: int = 0
    """What this incarnation has brought the job forward, in any unit: grows with tokens that are made, rows that are
    put or trained. Bounded between two steps, so that work that is done for nothing ends it."""
    seen_seq: int = 0


class BeatAnswer(WireModel):
    """A fenced incarnation gets 409 instead."""

    drain: bool
    """The pod shall drain: finish or hand back, then exit 0."""
    stops: bool = False
    """The roles that train leave with the version that they have, since a pod of one of them drains (`turns`)."""
    published: WeightId | None
    role_ranks: int
    """Ranks of its role by the orders in force, which change while the job runs."""


class Rendezvous(WireModel):
    """`PUT /v1/rendezvous/{group}` by global rank 0 of a role, long-polled by all of its ranks with `GET`.

    A rank that asks with its incarnation has come, and gets the address once all have. Until then the answer, at the
    end of its wait, names the ranks that are missing.
    """

    group: str
    epoch: Epoch
    generation: int
    address: str
    """host:port of the store; empty in an answer while a rank is missing."""
    incarnation: str = ""
    """Of global rank 0; empty in an answer while a rank is missing."""
    complete: bool = False
    """All ranks have come: a rank that asks from now on may join."""
    missing: list[str] = []
    """Ranks that have not come."""
    absent: list[str] = []
    """Pods that have not begun what they were ordered: their ranks cannot come yet."""


class FirstRank(WireModel):
    """`GET /v1/roles/{role}/first-rank?epoch=&incarnation=&wait=`: who global rank 0 of a role is in this epoch.

    `incarnation` in the question is the asking rank's. The answer comes once that rank has registered, or without it at
    the end of the wait.
    """

    incarnation: Incarnation | None
    has_begun: bool
    """Its pod has begun what it was ordered: the rank is only a matter of time."""


class NoticeKind(StrEnum):
    """What a rank reports that restarts nothing."""

    WRONG_WEIGHTS = "WrongWeights"
    STEP_SKIPPED = "StepSkipped"
    GRADIENT_SPIKE = "GradientSpike"
    ENGINE_STALLED = "EngineStandsStill"
    EVALUATION_UNFINISHED = "EvaluationUnfinished"
    TEMPLATE_NOT_SAVED = "ChatTemplateNotSaved"
    REWARD_RETRIED = "RewardRetried"
    TOOL_TEXT_CUT = "ToolTextCut"
    FUNCTION_BLOCKS = "FunctionBlocks"


class Notice(WireModel):
    """`POST /v1/notices`: something that the job survives and its owner should know; becomes an event."""

    incarnation: Incarnation = Field(alias="life")
    kind: NoticeKind
    message: str = Field(max_length=4096)
    """One sentence."""
    subject: str | None = Field(default=None, max_length=2500)
    """The subject, where all ranks may find the same: it becomes one event in an epoch."""


class StepReport(WireModel):
    """`POST /v1/steps`, by global rank 0 of each role that trains; of the actor after publishing version step + 1.

    The step is trained when all have reported it. What is reported of it then is the actor's, with the metrics of all:
    other roles report 0 for what is not in their metrics.
    """

    incarnation: Incarnation = Field(alias="life")
    step: int
    """The rollout id that was trained."""
    version: WeightVersion
    reward: float
    """Mean over the samples of the rollout."""
    loss: float
    metrics: Annotated[dict[str, float], FEW_NAMES] = {}
    """By their names in docs/metrics.md."""
    staleness: int
    """r minus the oldest version of any token of a row of train_r."""
    samples: int
    tokens: int
    seconds: float
    """Since the previous step was complete."""
