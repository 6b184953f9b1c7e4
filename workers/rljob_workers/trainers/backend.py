"""A trainer backend: all that the factories and the launcher know of a kind. Values only; the table is `TRAINERS`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_workers.trainers.mesh import Mesh, data_parallel

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import PreTrainedTokenizerBase

    from rljob_api.names import Role
    from rljob_api.spec import RLJobSpec
    from rljob_api.spec.roles import TrainerBackend
    from rljob_workers.trainers.base import ForwardModel, Trainer
    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.settings import CriticSettings


def _data_parallel(spec: RLJobSpec, role: Role, gang: DataParallelGroup) -> Mesh:  # noqa: ARG001 -- other layouts are of the job
    return data_parallel(gang)


@dataclass(frozen=True, slots=True)
class CriticBuilder:
    """How a kind of trainer makes critics. The job has the critic's own model, where it has one."""

    build: Callable[[CriticSettings, RLJobSpec, PreTrainedTokenizerBase, Mesh], Trainer]
    """The critic's trainer on one rank of a mesh; its weights are not set yet."""
    load_version_0: Callable[[Trainer, CriticSettings, RLJobSpec, PreTrainedTokenizerBase, Path], None]
    """Sets them, the same on every rank; the last argument is a folder of this machine for what is between."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One kind of trainer. What of it is known without torch stands in `rljob_api.spec.roles.BACKENDS`."""

    kind: TrainerBackend
    build: Callable[[RLJobSpec, PreTrainedTokenizerBase, Mesh], Trainer]
    """The actor's trainer on one rank of a mesh; its weights are not set yet."""
    forward_model: Callable[[RLJobSpec, PreTrainedTokenizerBase, Role, DataParallelGroup], ForwardModel]
    """The model of actor_fwd or of the reference, on one rank of the gang that holds it together; its weights are not
    set yet. The spec refuses a gang of several ranks for a backend of which each holds a whole model."""
    version_0: Callable[[RLJobSpec, PreTrainedTokenizerBase], Mapping[str, torch.Tensor]]
    """All tensors of version 0, by the hub's names."""
    some_of_version_0: Callable[[RLJobSpec, PreTrainedTokenizerBase, Collection[str]], Mapping[str, torch.Tensor]]
    """Those of these names."""
    mesh: Callable[[RLJobSpec, Role, DataParallelGroup], Mesh] = _data_parallel
    """How the ranks of a role that trains are laid out; a collective of the gang. By default each has its own rows."""
    reads_folders: bool = False
    """Whether a trainer loads its own rows of a model's folder, so that no rank needs all of its tensors."""
    critic: CriticBuilder | None = None
    """None: it trains no critic."""
    preload: tuple[str, ...] = ()
    """Modules that its models need and that jobs of other backends shall not pay for, imported before ranks are forked:
    imports only."""
