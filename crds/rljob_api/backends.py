"""Which backend computes a job's model. Pure; whoever must know asks here: roles, launcher, memory formula, rules."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rljob_api.spec import RLJobSpec


class TrainerBackend(StrEnum):
    """What computes a model in training."""

    FLAT = "Flat"
    FSDP = "Fsdp"


def trainer_backend(spec: RLJobSpec) -> TrainerBackend:
    """The actor's backend, and that of every role that computes log-probs: as given, else as the model wants it."""
    if spec.roles.actor.backend is not None:
        return spec.roles.actor.backend
    return TrainerBackend.FLAT if spec.model.path is None else TrainerBackend.FSDP
