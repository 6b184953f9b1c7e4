"""Who speaks: pods, ranks and their incarnations."""

from pydantic import Field

from rljob_api.base import WireModel
from rljob_api.names import Epoch, Lineage, Role, WeightVersion


class PodKey(WireModel):
    """One replica of a role."""

    role: Role
    replica: int = Field(ge=0)

    def __str__(self) -> str:
        return f"{self.role.value}-{self.replica}"


class RankKey(WireModel):
    """One process slot of a pod."""

    role: Role
    replica: int = Field(ge=0)
    rank: int = Field(default=0, ge=0)

    @property
    def pod(self) -> PodKey:
        """The pod that this rank belongs to."""
        return PodKey(role=self.role, replica=self.replica)

    def __str__(self) -> str:
        return f"{self.role.value}-{self.replica}.{self.rank}"


class Incarnation(WireModel):
    """One incarnation of a rank. `id` is unique (12 hex digits, drawn by the launcher before the fork)."""

    key: RankKey
    epoch: Epoch
    generation: int = Field(ge=0)
    """Counts in-place restarts of the pod within the epoch."""
    id: str = Field(alias="incarnation", pattern=r"^[0-9a-f]{12}$")


class WeightId(WireModel):
    """A weight: version 6 trained again in a later lineage is not the lost version 6."""

    lineage: Lineage
    version: WeightVersion

    def __str__(self) -> str:
        return f"v{self.version}@{self.lineage}"


class Endpoints(WireModel):
    """Where the job's services are, with their secrets. Written with mode 0600, never logged."""

    job: str
    coordinator: str
    """Base URL, e.g. http://127.0.0.1:41234."""
    token: str
    control_redis: str
    """redis://:password@host:port/0 or unix://:password@/path/control.sock."""
    storage_units: list[str]
    run_dir: str
    """Folder for logs, checkpoints, samples.jsonl, timeline parts."""
    weights_dir: str
    """Folder in memory (tmpfs) for staged weights of this machine."""
    address: str = "127.0.0.1"
    """Where other pods of the job reach this one; what a rank serves (weights, rendezvous stores) listens there."""


class Refusal(WireModel):
    """Body of an error answer of the coordinator."""

    reason: str
    """Fenced | WrongEpoch | NotOpen | NotFound | Dead | Incomplete | BadRequest."""
    message: str
