"""Messages about checkpoints: the writer of each part, parts that are written, abandoned attempts, and the record."""

from pydantic import Field

from rljob_api.base import WireModel
from rljob_api.names import Role
from rljob_api.wire.identity import Incarnation, WeightId


class PartWriter(WireModel):
    """A rank that writes a part."""

    role: Role
    rank: int = Field(ge=0)
    """Global, within the role."""

    def __str__(self) -> str:
        return f"{self.role.value} rank {self.rank}"


class CheckpointBegin(WireModel):
    """`POST /v1/checkpoints/begin`, by rank 0 of each role that saves, once that has come to the version.

    The parts that the leader names are the checkpoint's.
    """

    incarnation: Incarnation = Field(alias="life")
    id: WeightId
    folder: str
    """Name below the checkpoint path, once it is whole."""
    parts: list[PartWriter]
    """Of all roles that save."""


class CheckpointPart(WireModel):
    """What one rank has written and synced."""

    writer: PartWriter
    files: dict[str, str]
    """File -> xxh3-64 hex."""


class CheckpointPartRequest(WireModel):
    """`POST /v1/checkpoints/parts`: may come before the leader's begin. The answer is the attempt."""

    incarnation: Incarnation = Field(alias="life")
    id: WeightId
    folder: str
    part: CheckpointPart


class CheckpointAttempt(WireModel):
    """A checkpoint in work.

    `GET /v1/checkpoints/attempts/{folder}?wait=` answers once it is whole, and with what is there at the end of the
    wait; null where nothing was reported.
    """

    epoch: int
    id: WeightId
    wanted: list[PartWriter] | None = None
    """None until the leader has begun it."""
    begun: list[Role] = []
    """Roles that have come to the version and write their parts."""
    parts: list[CheckpointPart] = []
    given_up: bool = False

    @property
    def missing(self) -> list[PartWriter]:
        """Who has not reported a part."""
        there = {(part.writer.role, part.writer.rank) for part in self.parts}
        return [writer for writer in self.wanted or [] if (writer.role, writer.rank) not in there]

    @property
    def to_begin(self) -> list[Role]:
        """Roles of which parts are wanted that have not come to the version: they may train for long yet."""
        return [role for role in dict.fromkeys(writer.role for writer in self.wanted or []) if role not in self.begun]

    @property
    def is_whole(self) -> bool:
        """Whether every wanted part is there."""
        return self.wanted is not None and not self.missing


class CheckpointGiveUp(WireModel):
    """`POST /v1/checkpoints/give-up`: the leader has waited long enough; the record before stands."""

    incarnation: Incarnation = Field(alias="life")
    folder: str
    waited_seconds: float


class DamageRequest(WireModel):
    """`POST /v1/checkpoints/damaged`: the folder that this epoch began with is not what was written."""

    incarnation: Incarnation = Field(alias="life")
    folder: str
    file: str
    """Below the checkpoint path."""
    message: str
    """One sentence, which names the file."""


class CheckpointRequest(WireModel):
    """`POST /v1/checkpoints`: records a durable checkpoint folder by compare-and-set in the current epoch."""

    incarnation: Incarnation = Field(alias="life")
    id: WeightId
    folder: str
    """Name below the checkpoint path."""
    checksums: dict[str, str]
    """File -> xxh3-64 hex."""
    call_id: str


class MetricValues(WireModel):
    """Values of a metric, by the version that has them: that of a step is its version."""

    metric: str = ""
    values: dict[int, float] = {}


class BestCheckpoint(WireModel):
    """The recorded checkpoint that `checkpoint.keepBest` keeps; the file `best.json` beside the folders."""

    version: int
    folder: str
    metric: str
    mode: str
    value: float


class Measured(WireModel):
    """What `stopWhen` and `checkpoint.keepBest` go by, of the versions that are part of the job's history."""

    stop: MetricValues = MetricValues()
    """The last values of the metric of stopWhen."""
    candidates: MetricValues = MetricValues()
    """Of the metric of keepBest: of folders that are kept, and of versions that may yet be recorded."""
    folders: dict[int, str] = {}
    """Recorded version -> its folder."""


class StepRow(WireModel):
    """Steps without a gap."""

    first: int
    last: int

    @classmethod
    def continued(cls, before: "StepRow | None", step: int) -> "StepRow":
        """With a step that ends it: the next one, or one of it that is repeated. Another one begins a new row."""
        goes_on = before is not None and before.first <= step <= before.last + 1
        return cls(first=before.first if before is not None and goes_on else step, last=step)

    @property
    def num_steps(self) -> int:
        """Its length."""
        return self.last - self.first + 1


class Health(WireModel):
    """Troubles that the steps of the job have shown."""

    rows: dict[str, StepRow] = {}
    """Trouble -> the last steps, all of which show it."""
    reported: dict[str, int] = {}
    """Trouble -> the step, or the evaluated version, after which it was reported."""
    came: list[str] = []
    """Metrics of stopWhen and keepBest that some step or evaluation has reported."""
    first_mismatches: dict[int, float] = {}
    """Step -> mismatch/kl, of the first ones that have it."""


class CheckpointRecord(WireModel):
    """The record, as in the control Redis and in `record.json` beside the folders."""

    id: WeightId
    epoch: int
    folder: str
    checksums: dict[str, str]
    ancestry: dict[str, int]
    """Lineage -> last version of it that is alive (the current lineage: -1 for no bound)."""
    measured: Measured | None = None
    """As it was with this record; None where nothing of the job goes by values."""
    best: BestCheckpoint | None = None
    """Which checkpoint keepBest keeps, as of this record."""
    health: Health | None = None
    """As it was with this record; None where no step has shown anything."""
