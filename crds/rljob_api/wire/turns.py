"""Messages about turns: the roles that train begin a rollout together, or leave before it together."""

from enum import StrEnum

from pydantic import Field

from rljob_api.base import BoundedText, WireModel
from rljob_api.names import Role, WeightVersion
from rljob_api.wire.identity import Incarnation


class Turn(StrEnum):
    """What a role that trains shall do with `train_r`, none of which it has trained on yet."""

    GO = "Go"
    """Train on it: all roles that train have come to it, and will."""
    STOP = "Stop"
    """Leave with version r: one of them drains, or stopWhen holds, and all leave with that version."""
    WAIT = "Wait"
    """Ask again: another one has not come to it, or an evaluation of version r is not over that stopWhen goes by."""


class StopReached(WireModel):
    """`stopWhen` holds: what trains leaves with this version, and with its record the job is complete."""

    version: WeightVersion
    message: BoundedText
    """One sentence, without a full stop."""


class TurnRequest(WireModel):
    """`POST /v1/turns?wait=`, by rank 0 of a role that trains, before its first optimizer step on `train_r`.

    The same question again gets the same answer, also after Go or Stop. The answer is a `TurnAnswer`.
    """

    incarnation: Incarnation = Field(alias="life")
    rollout: int = Field(ge=0)
    """r."""
    drains: bool
    """A rank of this role is ordered to drain."""
    roles: list[Role] = Field(min_length=1)
    """All that train in this epoch, the asking one included: the coordinator may work by the next epoch's job."""


class TurnAnswer(WireModel):
    """Go or Stop for good; Wait once the time is over."""

    turn: Turn
    waits_for: list[Role] = []
    """Roles that have not come to it."""
