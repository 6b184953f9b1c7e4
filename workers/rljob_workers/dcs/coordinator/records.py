"""What the coordinator must not forget: each kind of record and the table or cell that has it.

For the rooms of the coordinator and for `store`. Values only: who may change what is the rooms' business.
"""

from __future__ import annotations

from typing import Any

from rljob_api.base import WireModel
from rljob_api.names import Epoch
from rljob_api.spec import RLJob
from rljob_api.wire.checkpoints import CheckpointAttempt
from rljob_api.wire.epochs import DesiredState, RestorePoint
from rljob_api.wire.failures import Failure
from rljob_api.wire.identity import WeightId
from rljob_api.wire.launchers import LauncherHello
from rljob_api.wire.observation import RoomMade
from rljob_api.wire.ranks import RankHello, Rendezvous, StepReport
from rljob_api.wire.weights import CheckpointRecord, WeightOffer
from rljob_workers.dcs.coordinator.table import Cell, Table
from rljob_workers.dcs.coordinator.weight_parts import Gathering


class OpenEpoch(WireModel):
    """The epoch as it was opened."""

    decision_id: str
    restore: RestorePoint
    alive: dict[int, int]
    """Earlier lineage -> last version of it that is alive."""

    def is_alive(self, weight: WeightId) -> bool:
        """Whether a weight belongs to the path that led to the current lineage."""
        return weight.lineage == self.restore.lineage or weight.version <= self.alive.get(weight.lineage, -1)


class EpochJob(WireModel):
    """What an epoch runs with."""

    epoch: Epoch
    job: RLJob


class RankEntry(WireModel):
    """A registered life."""

    hello: RankHello
    ready: bool = False


class TakenOrder(WireModel):
    """The last order that a launcher of the pod took: it said so, or one of its ranks lived by it."""

    launcher: str
    pod_uid: str = ""
    epoch: Epoch
    generation: int


class OfferEntry(WireModel):
    """The newest whole weight of a stream."""

    offer: WeightOffer
    owners: dict[str, str]
    """Address -> incarnation of the life that serves it."""


PODS = Table("pods", LauncherHello)
"""Pod -> hello of its launcher."""
ENDED_LAUNCHERS = Table("ended_launchers", str)
"""Launcher -> pod, of lives that are over."""
TAKEN = Table("taken", TakenOrder)
"""Pod -> the last order that a launcher of it took."""
RANKS = Table("ranks", RankEntry)
"""Rank -> its current life."""
FAILURES = Table("failures", Failure)
"""Id -> failure that is not acknowledged."""
ACKNOWLEDGED = Table("acknowledged", float)
"""Id -> time, so that a late second report stays one failure."""
OFFERS = Table("weights", OfferEntry)
"""Stream -> newest whole weight with its sources. (`offers` had those of release 0.1.0, which knew no parts.)"""
PARTS = Table("parts", Gathering)
"""Stream -> parts of the weight that is not whole yet."""
ATTEMPTS = Table("checkpoint_attempts", CheckpointAttempt)
"""Folder -> checkpoint in work."""
DAMAGED = Table("damaged_checkpoints", str)
"""Folder -> what is wrong with it. A folder that could be renamed is not listed any more."""
RENDEZVOUS = Table("rendezvous", Rendezvous)
"""Group -> address."""
MARKS = Table("marks", str)
"""Kind of event -> what it was last told of, so that it is told once."""
TABLES: tuple[Table[Any], ...] = (
    PODS,
    ENDED_LAUNCHERS,
    TAKEN,
    RANKS,
    FAILURES,
    ACKNOWLEDGED,
    OFFERS,
    PARTS,
    ATTEMPTS,
    DAMAGED,
    RENDEZVOUS,
    MARKS,
)

EPOCH = Cell("epoch", OpenEpoch)
EPOCH_TO_COME = Cell("epoch_to_come", int)
"""The epoch that this job was about to open last: what is noted of it beside the checkpoints is its own."""
DESIRED = Cell("desired", DesiredState)
"""The orders that were taken last."""
LAST_STEP = Cell("step", StepReport)
"""The last report of a step that is still part of the job's history."""
RECORD = Cell("record", CheckpointRecord)
GIVEN_UP = Cell("given_up", int)
"""Checkpoints that were given up since the last record."""
JOB_IN_FORCE = Cell("job", EpochJob)
JOB_TO_COME = Cell("job_to_come", EpochJob)
ROOM = Cell("room", RoomMade)
"""What went to make room, as it was told last."""
RUN_ID = Cell("run_id", str)
"""Of the control Redis that was opened last."""
SEQ_FLOOR = Cell("seq_floor", int)
"""Numbers of a lost tail end here: its loss was cured."""
CELLS: tuple[Cell[Any], ...] = (
    EPOCH,
    EPOCH_TO_COME,
    DESIRED,
    LAST_STEP,
    RECORD,
    GIVEN_UP,
    JOB_IN_FORCE,
    JOB_TO_COME,
    ROOM,
    RUN_ID,
    SEQ_FLOOR,
)
