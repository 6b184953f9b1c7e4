"""The queue of a job (`spec.transferQueue`): storage units, memory and Redis pods. Anyone may import it."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.base import ApiModel
from rljob_api.change import fixed
from rljob_api.quantity import Quantity
from rljob_api.spec.infrastructure import ResourcesSpec


class Waiting(StrEnum):
    """How a consumer waits for rows: notified by the queue, or by polling."""

    NOTIFY = "Notify"
    POLL = "Poll"


class PersistenceKind(StrEnum):
    """Where the control Redis keeps its append-only file."""

    CLAIM = "Claim"
    EMPTY_DIR = "EmptyDir"


class PersistenceSpec(ApiModel):
    """The control Redis's volume. On a cluster only."""

    kind: PersistenceKind = PersistenceKind.CLAIM
    """Claim: a persistent volume, so that a lost pod loses nothing. EmptyDir: gone with the pod, and then the job goes
    back to its last checkpoint."""
    size: Quantity = "1Gi"
    """Size of the claim."""
    storage_class_name: str | None = Field(default=None, min_length=1, max_length=253)
    """Class of the claim; null means the cluster's default."""


class RedisSpec(ApiModel):
    """The Redis pods of a job. On a cluster only."""

    image: str | None = Field(default=None, min_length=1, max_length=512)
    """Image with redis-server; null means the operator's."""
    persistence: Annotated[
        PersistenceSpec, fixed("the control Redis keeps its state on the volume that it began with.")
    ] = PersistenceSpec()
    """Where control state is kept."""
    resources: ResourcesSpec = ResourcesSpec()
    """CPU and memory of each storage unit; memory above storageBytes is added where it is not given."""


class TransferQueueSpec(ApiModel):
    """Columns of samples in Redis, streamed between roles."""

    storage_units: int = Field(default=2, ge=1, le=64)
    """Redis servers that hold the columns (one more holds the control state)."""
    polling_mode: Waiting = Waiting.NOTIFY
    """How consumers wait for rows."""
    storage_bytes: int = Field(default=1 << 30, ge=1 << 24, le=1 << 44)
    """Memory limit of one storage unit, in bytes."""
    checksums: bool = False
    """true: a checksum of all bytes is stored and checked with each read; small reads then read more than they need."""
    redis: RedisSpec = RedisSpec()
    """The Redis pods."""
