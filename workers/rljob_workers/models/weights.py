"""Weights as one value, from the trainer's export to an engine or a forward model.

A trainer makes `Buckets` of a version, a transport carries them, and the receiver is handed a `Weights` whose source is
what that transport leaves: a folder, a group, or device memory. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from rljob_api.names import Stream
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import Probe
from rljob_workers.models.blob import WHOLE, WeightShare

if TYPE_CHECKING:
    import torch


class ExportKind(StrEnum):
    """What an export has of a model."""

    FULL = "Full"
    """All of its weights."""
    ADAPTER = "Adapter"
    """Those of an adapter, on top of weights that the receiver has already."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Safetensors files under the hub's names: a folder with one or with parts and their index, or a single file."""

    path: Path
    kind: ExportKind = ExportKind.FULL

    @property
    def num_bytes(self) -> int:
        """Of its files' tensors and headers."""
        files = self.path.glob("*.safetensors") if self.path.is_dir() else [self.path]
        return sum(file.stat().st_size for file in files)


@dataclass(frozen=True, slots=True)
class Group:
    """A collective group whose first ranks are the trainer's: tensors are broadcast in the order of the layout."""

    address: str
    """host:port where the ranks meet."""
    rank: int
    world: int
    layout: str
    """Digest of names, shapes and order."""
    kind: ExportKind = ExportKind.FULL


@dataclass(frozen=True, slots=True)
class IpcHandle:
    """Device memory of a process on the same device."""

    handles: Mapping[str, bytes]
    """By the hub's names."""
    kind: ExportKind = ExportKind.FULL


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Some whole tensors of the weights under Hugging Face's names, on the device, in the published dtype or a wider.

    Empty where this rank was assigned none of them.
    """

    tensors: Mapping[str, torch.Tensor]
    is_live: bool
    """Whether they are what is trained: they change with the next optimizer step. Else they are the receiver's."""


class Buckets:
    """One rank's part of a version, as its trainer exports it; valid until the trainer's next optimizer step.

    `on_device` and the first `on_host` are collectives of the ranks that train: every rank calls the same, in one
    order, also one without a share. The host copy is made once, for transport and checkpoint alike.
    """

    def __init__(
        self,
        share: WeightShare | None,
        export: Callable[[], Iterator[Bucket]],
        stage: Callable[[], Mapping[str, torch.Tensor]],
    ) -> None:
        """`share`: which part of the weights is this rank's; None: no part. The two functions are the trainer's."""
        self.share = share
        self._export = export
        self._stage = stage
        self._copies: Mapping[str, torch.Tensor] | None = None

    @classmethod
    def of_host(cls, tensors: Mapping[str, torch.Tensor], share: WeightShare | None = WHOLE) -> Buckets:
        """Tensors that lie on the host, and that no training changes."""
        return cls(share, lambda: iter([Bucket(tensors, is_live=False)]), lambda: tensors)

    def on_device(self) -> Iterator[Bucket]:
        """The tensors of now, bucket by bucket; each rank takes all buckets."""
        return self._export()

    def on_host(self) -> Mapping[str, torch.Tensor]:
        """Copies of whole tensors that later training does not touch. Empty on a rank without a share."""
        if self._copies is None:
            self._copies = self._stage()
        return self._copies


WeightSource: TypeAlias = Folder | Group | IpcHandle | Buckets
S = TypeVar("S", bound=WeightSource, covariant=True)


@dataclass(frozen=True, slots=True)
class Weights(Generic[S]):
    """A version of a model's weights."""

    id: WeightId
    stream: Stream
    source: S
    probe: Probe | None = None
    """What an engine must answer once it has them."""


class SourceNotTaken(NotImplementedError):
    """The receiver cannot take weights from there; the message names both."""


def full_folder(source: WeightSource, receiver: str) -> Path:
    """The path of a folder with all weights. Raises SourceNotTaken for every other source."""
    if not isinstance(source, Folder):
        raise SourceNotTaken(f"{receiver} takes weights from a folder, not from a {type(source).__name__}.")
    if source.kind is not ExportKind.FULL:
        raise SourceNotTaken(f"{receiver} takes all weights, not those of an adapter: {source.path}.")
    return source.path
