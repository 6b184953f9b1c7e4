"""Which backend computes a job's model, and what its processes import before they fork.

Pure; whoever must know asks here: roles, launcher, memory formula, rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from rljob_api.names import EngineKind
from rljob_api.role_traits import TRAITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rljob_api.names import Role
    from rljob_api.spec import Dtype, RLJobSpec


class TrainerBackend(StrEnum):
    """What computes a model in training."""

    FLAT = "Flat"
    FSDP = "Fsdp"
    SIM = "Sim"


def trainer_backend(spec: RLJobSpec) -> TrainerBackend:
    """The actor's backend, and that of every role that computes log-probs: as given, else as the model wants it."""
    if spec.roles.actor.backend is not None:
        return spec.roles.actor.backend
    if spec.roles.rollout.engine.kind is EngineKind.SIM:
        return TrainerBackend.SIM
    return TrainerBackend.FLAT if spec.model.path is None else TrainerBackend.FSDP


def head_dtype(spec: RLJobSpec) -> Dtype:
    """In which logits are computed, in training, by roles that compute log-probs, and by engines alike.

    Of a job whose defaults are resolved (`open_defaults`): with GPUs these give float32.
    """
    return spec.model.dtype if spec.model.head_dtype is None else spec.model.head_dtype


@dataclass(frozen=True, slots=True)
class Preloads:
    """What a process imports before it forks a job's ranks and engines, beside what all jobs have in common."""

    trainer: TrainerBackend = TrainerBackend.FLAT
    engine: EngineKind = EngineKind.TORCH
    """Of engines that are forked; Torch is in what all have in common."""


def preloads_of(spec: RLJobSpec, roles: Iterable[Role]) -> Preloads:
    """For the pods of `roles`. An engine of kind SGLang with GPUs is no fork: it imports what it needs itself."""
    engine = spec.roles.rollout.engine.kind
    is_forked = spec.roles.rollout.gpus == 0 and any(TRAITS[role].has_engines for role in roles)
    return Preloads(trainer_backend(spec), engine if is_forked else EngineKind.TORCH)
