"""Bodies of the dialect's control calls: abort, pause, weight updates.

Pure. Read by the HTTP edge.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import Field

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.torch_engine.dialect import ControlBody
from rljob_workers.engines.torch_engine.errors import BadRequest


class PauseMode(StrEnum):
    """What a pause does to running samples."""

    ABORT = "abort"
    """They end with the tokens that they have."""
    RETRACT = "retract"
    """They keep their tokens; their KV is computed anew when generation goes on."""
    IN_PLACE = "in_place"
    """They keep tokens and KV, also across an update of the weights."""
    DRAIN = "drain"
    """They run to their ends, and the pause is answered then; what has not begun waits. An extension of ours."""


class AbortBody(ControlBody):
    """`/abort_request`: exactly one of `rid` and `abort_all`."""

    rid: str | None = None
    abort_all: bool = False


class PauseBody(ControlBody):
    """`/pause_generation`."""

    mode: PauseMode = PauseMode.ABORT


class ScoreBody(ControlBody):
    """`/score_tokens`, an extension of ours."""

    input_ids: list[int] = Field(min_length=2)


class UpdateBody(ControlBody):
    """`/update_weights_from_disk`. `weight_version` is `7` with `lineage` beside it, or `lineage:version`."""

    model_path: Path
    weight_version: str | int
    lineage: int | None = Field(default=None, ge=0)
    flush_cache: bool = True
    abort_all_requests: bool = False

    def weight(self) -> WeightId:
        """The id that the weights are held under."""
        lineage, _, version = str(self.weight_version).rpartition(":")
        given = lineage or (None if self.lineage is None else str(self.lineage))
        if given is None or not given.isdigit() or not version.isdigit():
            raise BadRequest(
                f"weight_version: {self.weight_version!r} with lineage {self.lineage} names no weight. "
                "Give a whole number and lineage, or 'lineage:version'."
            )
        return WeightId(lineage=Lineage(int(given)), version=WeightVersion(int(version)))
