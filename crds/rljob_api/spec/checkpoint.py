"""The checkpoints of a job (`spec.checkpoint`) and their volume: fields and rules.

Anyone may import it. `rljob_api.model_files.size` computes the interval that `everySteps: null` leaves to the model.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.base import ApiModel
from rljob_api.change import LIVE, fixed, grows
from rljob_api.quantity import Quantity
from rljob_api.rule import Rule, RuledModel
from rljob_api.spec.measured import KeepBestSpec

CHECKPOINT_VOLUME: tuple[Rule, ...] = (
    Rule(
        field="onDelete",
        holds=lambda volume: volume.claim_name is None or volume.on_delete is None,
        sentence="{onDelete} is for a claim that is made for the job, but claimName {claimName} is yours, and is never "
        "deleted. Remove one of the two.",
        cel="!has(self.claimName) || !has(self.onDelete)",
    ),
)


class AccessMode(StrEnum):
    """How many nodes may mount a volume."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_MANY = "ReadWriteMany"


class OnDelete(StrEnum):
    """Treatment of a job's claim when the job is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class CheckpointVolumeSpec(RuledModel):
    """The volume of the checkpoints. On a cluster only."""

    rules = CHECKPOINT_VOLUME

    claim_name: Annotated[str | None, fixed("the job's checkpoints lie on it.")] = Field(
        default=None, min_length=1, max_length=253
    )
    """A claim of yours, which is never deleted; null makes one named `NAME-checkpoints`."""
    size: Annotated[Quantity, grows("no volume can be made smaller.")] = "10Gi"
    """Size of the claim that is made. A larger one expands it, where its class has allowVolumeExpansion."""
    on_delete: Annotated[OnDelete | None, LIVE] = None
    """Treatment of the job's claim when the job goes, by its time to live or by hand. Retain: it stays with
    its files; a later job of this name that differs in nothing that is fixed trains on from its last checkpoint.
    Delete: it goes, too. Null: Retain, but a claim that release 0.1.0 made goes with its job."""
    storage_class_name: Annotated[str | None, fixed("a volume keeps the class that it was made of.")] = Field(
        default=None, min_length=1, max_length=253
    )
    """Class of the claim that is made; null means the cluster's default."""
    access_mode: Annotated[AccessMode, fixed("a volume keeps the access mode that it was made with.")] = (
        AccessMode.READ_WRITE_ONCE
    )
    """ReadWriteMany: storage shared by all nodes. ReadWriteOnce: actor, critic and coordinator share a node, and a lost
    node takes the job down until its volume can be mounted elsewhere (never, where it is the node's own disk)."""


class CheckpointSpec(ApiModel):
    """Checkpoints: policy, optimizer, random state, data cursor."""

    path: Annotated[str | None, fixed("the job's checkpoints lie there.")] = Field(
        default=None, min_length=1, max_length=4096
    )
    """Folder; null means `checkpoints` in the run folder. Relative to the run folder."""
    every_steps: int | None = Field(default=None, ge=1, le=10_000_000)
    """A checkpoint after every so many trained rollouts (and at the end). Null: as many as fit the model, one for every
    6 GB of a checkpoint, whose parameters take 12 bytes each in float32 and 14 in bfloat16, and at most 50. So 1 up to
    400 million parameters, 10 for 4 billion."""
    keep: int = Field(default=2, ge=1, le=1000)
    """Newest recorded checkpoints that are kept."""
    keep_every: int | None = Field(default=None, ge=1, le=10_000_000)
    """Versions that are multiples of this are saved, whatever everySteps says, and kept for ever beside the newest.
    Null: none."""
    keep_best: KeepBestSpec | None = None
    """The recorded checkpoint with the best value of a metric is kept beside these. Null: none."""
    volume: CheckpointVolumeSpec = CheckpointVolumeSpec()
    """Where the run folder of actor, critic and coordinator lies on a cluster."""
