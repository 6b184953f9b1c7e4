"""Between a launcher and the coordinator."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.base import ONE_PROBLEM, WireModel
from rljob_api.names import Epoch
from rljob_api.spec import RLJob
from rljob_api.wire.epochs import PodOrder
from rljob_api.wire.identity import PodKey


class LauncherHello(WireModel):
    """`POST /v1/launchers`: registers one incarnation of a launcher; a later one of the same pod fences it."""

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
    """How many collectives it has entered; None where it has not reported: it takes part in none."""
    is_within_collective: bool = False
    """It has not come out of the last one."""


class EngineState(StrEnum):
    """Incarnation of an engine server."""

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


Engines = Annotated[list[EngineProcess], ONE_PROBLEM]
"""Engines of a pod that were started and are wanted, by index."""


class LauncherPoll(WireModel):
    """`POST /v1/launchers/{launcher}/poll`: state of the pod; long-polls for an order other than `carried`."""

    carried: PodOrder | None
    """The order that the launcher carries out now."""
    ranks: list[RankProcess]
    engines: Engines = []
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
    """`GET /v1/replicas/{pod_uid}?wait=SECONDS`: which replica the pod is; None: not known yet, ask again."""

    pod: PodKey | None
