"""Between `rljob run` and the preloaded parent that forks the launchers of this machine: JSON lines over a socket pair.

The parent reads `SpawnLauncher` lines and writes `LauncherSpawned` and `LauncherExited` lines; it ends with its socket.
`Preloads` is what such a parent, or a launcher in a pod, imports before it forks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, TypeAdapter

from rljob_api.base import WireModel
from rljob_api.engines import DEFAULT_ENGINE
from rljob_api.names import EngineKind
from rljob_api.roles import MODEL_ROLES, TRAITS
from rljob_api.spec.roles import TrainerBackend
from rljob_api.wire.identity import PodKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rljob_api.names import Role
    from rljob_api.spec import RLJobSpec


@dataclass(frozen=True, slots=True)
class Preloads:
    """What a process imports before it forks a job's ranks and engines, beside what all jobs have in common."""

    trainers: frozenset[TrainerBackend] = frozenset({TrainerBackend.FLAT})
    engine: EngineKind | None = DEFAULT_ENGINE
    """Of engines that are forked; None: there are none."""
    tokenizer_in_folder: bool = False
    """Its class is then found among those of all families, whose index takes as long to import as a third of torch."""


def preloads_of(spec: RLJobSpec, roles: Iterable[Role]) -> Preloads:
    """For the pods of `roles`: backends of those whose ranks hold a model, and engines.

    An engine with GPUs that is a program is no fork: it imports what it needs itself.
    """
    asked, engine = list(roles), spec.roles.rollout.engine.kind
    is_forked = spec.roles.rollout.gpus == 0 and any(TRAITS[role].has_engines for role in asked)
    trainers = frozenset(spec.backend_of(role) for role in asked if role in MODEL_ROLES)
    in_folder = bool(spec.model.path or spec.model.tokenizer_path)
    return Preloads(trainers, engine if is_forked else None, in_folder)


class SpawnLauncher(WireModel):
    """Fork a launcher for this pod."""

    kind: Literal["SpawnLauncher"] = "SpawnLauncher"
    pod: PodKey
    pod_uid: str
    container_restart_count: int = 0
    manifest: str
    """Path of the resolved RLJob (JSON)."""
    endpoints: str
    """Path of the `Endpoints` file (JSON, mode 0600)."""
    devices: list[str] = []
    """The pod's, as CUDA_VISIBLE_DEVICES names them; empty: it computes on the CPU."""


class ParentReady(WireModel):
    """Sent once, when the heavy libraries are imported."""

    kind: Literal["ParentReady"] = "ParentReady"
    pid: int


class LauncherSpawned(WireModel):
    """The launcher runs."""

    kind: Literal["LauncherSpawned"] = "LauncherSpawned"
    pod_uid: str
    pid: int


class LauncherExited(WireModel):
    """The launcher is gone; -9 for SIGKILL."""

    kind: Literal["LauncherExited"] = "LauncherExited"
    pod_uid: str
    pid: int
    exit_code: int


ParentMessage = Annotated[ParentReady | LauncherSpawned | LauncherExited, Field(discriminator="kind")]


PARENT_MESSAGE: TypeAdapter[ParentReady | LauncherSpawned | LauncherExited] = TypeAdapter(ParentMessage)
