"""Between a launcher and the coordinator."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, computed_field, model_validator

from rljob_api.base import ONE_PROBLEM, WireModel
from rljob_api.names import Epoch
from rljob_api.spec import RLJob
from rljob_api.wire.epochs import PodOrder
from rljob_api.wire.identity import PodKey


class LauncherHello(WireModel):
    """`POST /v1/launchers`: registers one life of a launcher; a later life of the same pod fences the earlier."""

    pod: PodKey
    pod_uid: str
    container_restart_count: int = 0
    launcher: str = Field(pattern=r"^[0-9a-f]{12}$")
    pid: int
    ranks_per_pod: int = 1
    seen_seq: int = 0


class RankProcess(WireModel):
    """A rank as its launcher sees it."""

    rank: int
    pid: int
    incarnation: str
    epoch: Epoch
    generation: int
    exit_code: int | None = None
    """None while it runs; -9 for SIGKILL."""
    cut_off: bool = False
    """See `Failure.cut_off`."""
    collectives: int | None = None
    """How many collectives it has entered; None where it has not told: it takes part in none."""
    is_within_collective: bool = False
    """It has not come out of the last one."""


class EngineState(StrEnum):
    """Life of an engine server."""

    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"


class EngineProcess(WireModel):
    """An engine server of a pod; it outlives restarts of its rank."""

    index: int = 0
    """Within the pod: rank i drives engine i."""
    pid: int
    incarnation: str
    url: str
    state: EngineState


class EnginesModel(WireModel):
    """A message with the engines of a pod. Release 0.1.0 knows of one engine a pod, and calls it `engine`."""

    engines: Annotated[list[EngineProcess], ONE_PROBLEM] = []
    """Those that were started and are wanted, by index."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def engine(self) -> EngineProcess | None:
        """Engine 0; written for readers of release 0.1.0."""
        return next((engine for engine in self.engines if engine.index == 0), None)

    @model_validator(mode="before")
    @classmethod
    def _read_the_only_engine(cls, data: Any) -> Any:  # noqa: ANN401 -- whatever was sent
        """Of a sender of release 0.1.0."""
        if isinstance(data, dict) and "engines" not in data and data.get("engine") is not None:
            return {**data, "engines": [data["engine"]]}
        return data


class LauncherPoll(EnginesModel):
    """`POST /v1/launchers/{launcher}/poll`: state of the pod; long-polls for an order other than `carried`."""

    carried: PodOrder | None
    """The order that the launcher carries out now."""
    ranks: list[RankProcess]
    seen_seq: int = 0
    """Highest seq that any rank of the pod has seen of the control Redis."""
    wait_seconds: float = Field(default=1.0, ge=0, le=30)


class LauncherAnswer(WireModel):
    """The wanted state (equal to `carried` when nothing changed); None: not known yet, poll again."""

    order: PodOrder | None
    world_size: int = 1
    first_rank: int = 0
    """Global rank of this pod's rank 0."""
    job: RLJob | None = None
    """What the order's epoch runs with; only where the poll's `carried` is of another epoch (or none)."""


class ReplicaAnswer(WireModel):
    """`GET /v1/replicas/{pod_uid}?wait=SECONDS`: which replica the pod is; None: not told yet, ask again."""

    pod: PodKey | None
