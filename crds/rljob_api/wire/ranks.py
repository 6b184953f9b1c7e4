"""Between a rank and the coordinator."""

from enum import StrEnum

from pydantic import Field

from rljob_api.base import WireModel
from rljob_api.names import Epoch, WeightVersion
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.identity import Life, WeightId


class RankHello(WireModel):
    """`POST /v1/ranks`: registers a life. Ends every earlier life of the same rank: its leases and tickets return."""

    life: Life
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

    what: str
    seconds: float = Field(gt=0)
    """From now, by the coordinator's clock."""


class Beat(WireModel):
    """`POST /v1/ranks/beat`, sent by the rank's own main loop."""

    life: Life
    state: RankState
    busy: Busy | None = None
    waiting: str | None = None
    """Who or what this rank waits for, in words; None while it works."""
    tickets: list[int] = []
    """Ids of the tickets in work; one that is unlisted for two beats comes back."""
    leases: list[str] = []
    """Leases in work; they are renewed."""
    holds: WeightId | None = None
    counters: dict[str, float] = {}
    """Monotonic counters and gauges of this rank, for /metrics (bounded, known names)."""
    seen_seq: int = 0


class BeatAnswer(WireModel):
    """A fenced life gets 409 instead."""

    drain: bool
    """The pod shall drain: finish or hand back, then exit 0."""
    published: WeightId | None


class Rendezvous(WireModel):
    """`PUT /v1/rendezvous/{group}` by global rank 0 of a role, long-polled by all of its ranks with `GET`.

    Who asks with its incarnation has come, and is answered with the address once all have. Until then it is told, at
    the end of its wait, who is missing.
    """

    group: str
    epoch: Epoch
    generation: int
    address: str
    """host:port of the store; empty in an answer while somebody is missing."""
    incarnation: str = ""
    """Of global rank 0; release 0.1.0 does not tell."""
    complete: bool = False
    """All ranks have come: whoever asks from now on may join."""
    missing: list[str] = []
    """Ranks that have not come."""
    absent: list[str] = []
    """Pods that have not begun what they were ordered: their ranks cannot come yet."""


class StepReport(WireModel):
    """`POST /v1/steps`, by global rank 0 of the actor after publishing version step + 1."""

    life: Life
    step: int
    """The rollout id that was trained."""
    version: WeightVersion
    reward: float
    """Mean over the samples of the rollout."""
    loss: float
    metrics: dict[str, float] = {}
    """kl, clip_fraction, grad_norm, entropy, response_length ..."""
    staleness: int
    """r minus the oldest version of any token of a row of train_r."""
    samples: int
    tokens: int
    seconds: float
    """Since the previous step was complete."""
