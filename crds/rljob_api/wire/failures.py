"""Failure reports: durable in the coordinator, with an id, until the supervisor has acted and acknowledged."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.base import OPEN, BoundedText, WireModel
from rljob_api.names import Epoch
from rljob_api.wire.identity import PodKey


class FailureKind(StrEnum):
    """What was seen."""

    RANK_EXITED = "RankExited"
    LAUNCHER_LOST = "LauncherLost"
    """The pod's first process died, or its container was restarted under it."""
    HANG = "Hang"
    ENGINE_EXITED = "EngineExited"
    """Infrastructure: reported and restarted in place by the launcher; has no row in the table."""
    ROWS_LOST = "RowsLost"
    """Rows that training had claimed are gone with their storage unit: only a global restart brings them back."""
    CHECKPOINT_DAMAGED = "CheckpointDamaged"
    """The checkpoint that the epoch began with is damaged: the next epoch begins with an older one, which is intact."""
    REPORTED = "Reported"
    """A role reports a failure of the job that no process died of (e.g. maxAttempts exceeded)."""


class Hopeless(StrEnum):
    """Why no restart helps, as its finder calls it; the job fails by this name."""

    ENGINE_CANNOT_START = "EngineCannotStart"
    """An engine has died again and again before it was ever up."""
    ENGINE_MISMATCH = "EngineMismatch"
    """Engine and trainer compute the same weights differently."""


class Failure(WireModel):
    """`POST /v1/failures`. The id is made from the cause, so that one cause reported twice is one failure."""

    id: str = Field(min_length=1, max_length=128)
    """`{pod_uid}/{container_restart_count}/{incarnation}` for a rank's death."""
    kind: Annotated[FailureKind | str, OPEN]
    """One that the reader does not know asks nothing of it."""
    pod: PodKey
    rank: int | None = None
    engine: int | None = None
    """Index of the engine that exited; None where no engine did."""
    epoch: Epoch
    generation: int = 0
    incarnation: str | None = None
    exit_code: int | None = None
    """-N for signal N, as subprocess has it."""
    cut_off: bool = False
    """A rank that left (EXIT_CUT_OFF) when its launcher could not reach the coordinator either: no failure of it."""
    message: BoundedText
    """One sentence: who died of what."""
    last_words: BoundedText = ""
    """Tail of the rank's stderr, at most 4 KiB."""
    hopeless: Annotated[Hopeless | str | None, OPEN] = None
    """None: a restart may help."""
    at: float
    """Unix time in seconds."""


class FailureAcknowledgement(WireModel):
    """`POST /v1/failures/acknowledge`: the status remembers these, the coordinator may forget them.

    Unknown ids are fine: an acknowledgement may be sent twice.
    """

    ids: list[str]
