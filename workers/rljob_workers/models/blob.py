"""Weights as files: a state dict as one safetensors file (a blob), a model in parts, and the part that a rank stages.

For weight transports, checkpoints, engines and trainers; names are Hugging Face's. A blob is written beside and
renamed, never changed in place, so that a reader that has mapped it keeps its bytes, also after it was deleted.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

import xxhash
from safetensors import safe_open

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

K = TypeVar("K")

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
METADATA = {"format": "pt"}
"""transformers refuses a safetensors file without the name of its framework."""


def write_blob(path: Path, state: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes `state` to `path`, atomically: the file is there whole or not at all."""
    from safetensors.torch import save_file  # which imports torch: what only looks at a folder needs none

    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        tensors = {name: tensor.detach().contiguous() for name, tensor in state.items()}
        save_file(tensors, beside, metadata={**METADATA, **(metadata or {})})
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_blob(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of `path`, mapped and not copied: copy what shall be changed, or outlive a truncation of the file."""
    with safe_open(path, framework="pt", device="cpu") as blob:
        return {name: blob.get_tensor(name) for name in blob.keys()}  # noqa: SIM118 -- not a mapping


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, or of a folder with `model.safetensors` or its parts; mapped, not copied."""
    if not path.is_dir():
        return read_blob(path)
    return {
        name: tensor for file in sorted(path.glob("model*.safetensors")) for name, tensor in read_blob(file).items()
    }


def part_file(index: int, count: int) -> str:
    """What a part of a model is called in its folder, as Hugging Face has it; a single part is `model.safetensors`."""
    return WEIGHTS_FILE if count == 1 else f"model-{index + 1:05}-of-{count:05}.safetensors"


def rounds(sizes: Mapping[K, int], limit: int) -> list[list[K]]:
    """The names in their order, as many together as stay within the limit, and one at least; none at all of none."""
    cut: list[list[K]] = []
    room = 0
    for name, size in sizes.items():
        if not cut or size > room:
            cut.append([])
            room = limit
        cut[-1].append(name)
        room -= size
    return cut


def is_part_of_several(file: str) -> bool:
    """Whether a file of this name is one of several parts."""
    return fnmatchcase(file, "model-*-of-*.safetensors")


def blob_metadata(path: Path) -> dict[str, str]:
    """What `write_blob` was given as metadata (and the format)."""
    with safe_open(path, framework="pt", device="cpu") as blob:
        return dict(blob.metadata() or {})


@dataclass(frozen=True, slots=True)
class WeightShare:
    """The part of a model's weights that a rank stages, whole tensors: `index` of `count`.

    Made by a trainer, and the same for all versions of its incarnation.
    """

    index: int
    count: int
    layout: str
    """Digest of names, shapes and assignment of all parts."""


def layout_digest(parts: Sequence[Mapping[str, Sequence[int]]]) -> str:
    """xxh3-128, hex, of which tensors, of which shapes, are in which part."""
    text = json.dumps([{name: list(shape) for name, shape in part.items()} for part in parts], separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(text.encode())


WHOLE = WeightShare(0, 1, "whole")
"""All tensors in one part, whatever they are."""
