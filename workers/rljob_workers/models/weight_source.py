"""Where an engine or a forward model takes weights from. Values only, torch-free.

A trainer gives buckets (`trainers.base.Bucket`), a transport carries them, and the receiver is handed one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias


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


WeightSource: TypeAlias = Folder | Group | IpcHandle


class SourceNotTaken(NotImplementedError):
    """The receiver cannot take weights from there; the message names both."""


def full_folder(source: WeightSource, receiver: str) -> Path:
    """The path of a folder with all weights. Raises SourceNotTaken for every other source."""
    if not isinstance(source, Folder):
        raise SourceNotTaken(f"{receiver} takes weights from a folder, not from a {type(source).__name__}.")
    if source.kind is not ExportKind.FULL:
        raise SourceNotTaken(f"{receiver} takes all weights, not those of an adapter: {source.path}.")
    return source.path
