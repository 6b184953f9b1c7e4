"""The trainer's state as release 0.1.0 saved it: one file of flat buffers, and their layout. For trainers' restores.

Mapped, and copied by whoever reads it.
"""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

from rljob_workers.models.blob import read_blob
from rljob_workers.models.slices import EXP_AVG, EXP_AVG_SQ, PARAMETER

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

STATE_FILE, VALUES_FILE = "state.safetensors", "state.json"
_BUFFERS = {
    EXP_AVG: "optimizer.first_moment",
    EXP_AVG_SQ: "optimizer.second_moment",
    PARAMETER: "weights",
}


class OldState:
    """The state in a folder of release 0.1.0."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tensors = read_blob(folder / STATE_FILE)
        self.values: Mapping[str, Any] = json.loads((folder / VALUES_FILE).read_text())

    @property
    def random(self) -> torch.Tensor:
        """The random state of its one rank."""
        return self._tensors["random"]

    def kinds(self) -> dict[str, dict[str, torch.Tensor]]:
        """Kind of state -> Hugging Face's name -> whole tensor. PARAMETER only where weights were rounded."""
        return {kind: self._views(self._tensors[key]) for kind, key in _BUFFERS.items() if key in self._tensors}

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """ValueError where it is of a model of other names or shapes."""
        if {name: tuple(shape) for name, *shape in self.values.get("layout") or ()} != dict(shapes):
            raise ValueError(
                f"checkpoint: the optimizer's state in {self._folder} is of another model (its list of tensors "
                "differs). Give checkpoint.path a folder of this job, or an empty one."
            )

    def _views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        views, start = {}, 0
        for name, *shape in self.values["layout"]:
            views[name] = flat[start : start + prod(shape)].view(*shape)
            start += prod(shape)
        return views


def is_of_release_0_1_0(folder: Path) -> bool:
    """Whether the folder's state is such a one."""
    return (folder / VALUES_FILE).exists()
