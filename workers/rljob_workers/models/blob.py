"""Weight blobs: a state dict as one safetensors file, names as Hugging Face has them.

For weight transports, checkpoints, engines and trainers. A blob is written beside and renamed, never changed in place,
so that a reader that has mapped it keeps its bytes, also after it was deleted.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from safetensors import safe_open
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

METADATA = {"format": "pt"}
"""transformers refuses a safetensors file that does not say what it was written for."""


def write_blob(path: Path, state: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes `state` to `path`, atomically: the file is there whole or not at all."""
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


def blob_metadata(path: Path) -> dict[str, str]:
    """What `write_blob` was given as metadata (and the format)."""
    with safe_open(path, framework="pt", device="cpu") as blob:
        return dict(blob.metadata() or {})
