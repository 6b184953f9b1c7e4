"""Raising the epoch, and what each pod shall do (the supervisor writes, the launchers poll the coordinator)."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.base import FEW_NAMES, ONE_PROBLEM, WireModel
from rljob_api.names import Epoch, Lineage, WeightVersion
from rljob_api.spec import RLJob
from rljob_api.wire.identity import PodKey


class EpochRequest(WireModel):
    """`POST /v1/epoch`: sets the epoch if it is greater; the same epoch and decision succeed again."""

    epoch: Epoch
    decision_id: str = Field(min_length=1, max_length=64)
    reason: str
    job: RLJob | None = None
    """The job as it is from this epoch on; None: as before. Stored durably along with the epoch."""


class RestorePoint(WireModel):
    """What an epoch starts from."""

    epoch: Epoch
    lineage: Lineage
    version: WeightVersion
    """c: the last recorded checkpoint (0 also when none was recorded yet)."""
    folder: str | None
    """Folder of checkpoint c below the checkpoint path; None: version 0 is still to be materialised."""
    kept_groups: int
    dropped_groups: int


class PodPhase(StrEnum):
    """What a pod shall do."""

    RUN = "Run"
    DRAIN = "Drain"
    """Finish or hand back work, save where the role saves, exit 0; the launcher stays."""
    DONE = "Done"
    """Stop ranks and engine; the launcher exits 0."""


UNSEEN_POD = "none"
"""`PodOrder.pod_uid` of a replica whose pod the supervisor has not seen yet; no platform gives a pod this uid."""


class PodOrder(WireModel):
    """The wanted state of one pod. Level-triggered: a launcher compares it with what it runs."""

    pod: PodKey
    epoch: Epoch
    generation: int = Field(default=0, ge=0)
    phase: PodPhase = PodPhase.RUN
    pod_uid: str = ""
    """The platform's pod that this replica is; empty on one machine, where any launcher is taken. A launcher that knows
    only its uid asks `GET /v1/replicas/{pod_uid}` for its `PodKey`, and another pod's launcher is refused.

    UNSEEN_POD until the supervisor has seen the pod: no launcher may begin the order. One that did, in a container that
    restarted before its platform reported it, would be replaced once it was seen, and a rank that begins a second time
    within an epoch begins behind what the first has trained.
    """


class DesiredState(WireModel):
    """`PUT /v1/desired`: all pods. Refused when its epoch is not the coordinator's."""

    epoch: Epoch
    pods: Annotated[list[PodOrder], ONE_PROBLEM]
    replicas: Annotated[dict[str, int], FEW_NAMES]
    """Role -> number of pods; with ranks per pod it gives world size and rank."""
