"""What `rljob checkpoint` asks of a process of the workers, and the lines that this process answers with.

The process prints one `Answer` a line: how far it is, and in the end what it has found or why it has refused.
"""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from rljob_api.base import WireModel
from rljob_api.names import Role
from rljob_api.wire.checkpoints import BestCheckpoint


class ExportDtype(StrEnum):
    """Types that weights can be exported in, as torch and config.json call them."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class CheckpointQuestion(WireModel):
    """What a record has in it."""

    folder: str
    """A record, or the folder with the job's records, of which the latest is meant."""
    is_verified: bool
    """Whether its files are read and compared with their checksums."""


class ExportQuestion(WireModel):
    """A Hugging Face folder of a role's model in a record."""

    folder: str
    """As of `CheckpointQuestion`."""
    to: str
    """The folder to be made."""
    role: Role
    dtype: ExportDtype | None
    """None: each tensor as it was published."""
    is_verified: bool


class StateKind(WireModel):
    """State of one kind: a moment, exact weights, what a rank has for itself."""

    kind: str
    slices: int
    bytes: int


class RecordedModel(WireModel):
    """The published weights of a role."""

    model_type: str | None
    """Of config.json; None where that cannot be read."""
    architecture: str | None
    parameters: int
    dtypes: dict[str, int]
    """Name of a type, as torch has it -> bytes of its tensors."""
    bytes: int
    """Of all tensors."""
    parts: int
    """Files that they are in."""


class RecordedState(WireModel):
    """What a role trains on from, beside its weights."""

    ranks: int
    """That wrote it."""
    optimizer_steps: int | None
    kinds: list[StateKind]
    bytes: int


class RecordedRole(WireModel):
    """What a record has of a role that trains."""

    role: Role
    model: RecordedModel | None
    """None where no file of its weights can be read."""
    state: RecordedState | None


class RecordedReference(WireModel):
    """The reference version that a record's rows are measured against: files beside the records."""

    version: int
    files: list[str]
    bytes: int
    is_here: bool
    """False where a record was copied without them."""


class CheckpointReport(WireModel):
    """What lies in a record."""

    folder: str
    latest_of: str | None
    """The folder with the records that it is the latest of; None where it was named itself."""
    others: list[str]
    """Other records beside it, newest first."""
    best: BestCheckpoint | None = None
    """Which of all of them `checkpoint.keepBest` keeps; None where it keeps none, or lies elsewhere."""
    job: str | None = None
    """None where neither the record nor what lies around it says whose it is."""
    version: int | None
    """Rollouts that were trained; None where the folder does not bear the name that it was recorded under."""
    epoch: int | None
    lineage: int | None
    """Known of the last record alone."""
    is_recorded: bool
    written_at: datetime
    files: int
    bytes: int
    """Of all files, the reference's left out."""
    is_intact: bool | None
    """Whether all files are what was written; None where they were not verified, and nothing was found missing."""
    damage: list[str]
    """Each damaged file, and how."""
    roles: list[RecordedRole]
    reference: RecordedReference | None


class ExportReport(WireModel):
    """What was exported."""

    record: str
    latest_of: str | None
    to: str
    role: Role
    version: int | None
    model_type: str | None
    architecture: str | None
    dtypes: dict[str, int]
    """As of `RecordedModel`."""
    parameters: int
    bytes: int
    parts: int
    tensors: int
    tensors_published: int
    """Taken as they were published, bit for bit."""
    tensors_exact: int
    """Made of the float32 weights in the state."""
    tensors_converted: int
    """Made of published weights of another type."""
    is_verified: bool


class Progress(WireModel):
    """How far the process is."""

    what: str
    """`verified`, `written`."""
    done_bytes: int = Field(ge=0)
    total_bytes: int = Field(ge=0)


class Refusal(WireModel):
    """Why there is no answer."""

    sentence: str
    exit_code: int


class Answer(WireModel):
    """One line of the process; one of its fields is set."""

    progress: Progress | None = None
    checkpoint: CheckpointReport | None = None
    exported: ExportReport | None = None
    refusal: Refusal | None = None
