"""Under which names and shapes parameters are stored: as the hub has them, which engines read, too.

In memory the experts of a layer are one tensor; in a folder each has tensors of its own. All else is stored as it is.
Pure. What loads weights, publishes them or saves their state goes through here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

_EXPERTS = re.compile(r"(?P<layer>.*\.experts)\.(?P<kind>gate_up_proj|down_proj)")
_HALVES = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""What stands one below the other in an expert's matrix."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredPart:
    """A part of a stored tensor that lies in a tensor in memory."""

    name: str
    """Of the stored tensor."""
    shape: tuple[int, ...]
    """Of the whole stored tensor."""
    offset: tuple[int, ...]
    """Where in it the part begins."""
    values: torch.Tensor
    """A view: what is written to it is written to the tensor in memory."""

    @property
    def place(self) -> tuple[slice, ...]:
        """Of the part in the whole stored tensor."""
        return tuple(slice(start, start + length) for start, length in zip(self.offset, self.values.shape, strict=True))


def stored_shapes(name: str, shape: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The stored tensors of a parameter, with their shapes."""
    experts = _EXPERTS.fullmatch(name)
    if experts is None:
        return {name: tuple(shape)}
    halves = _HALVES[experts["kind"]]
    num_experts, rows, width = shape
    return {
        f"{experts['layer']}.{expert}.{half}.weight": (rows // len(halves), width)
        for expert in range(num_experts)
        for half in halves
    }


def stored_parts(name: str, shape: Sequence[int], local: torch.Tensor, first: int) -> Iterator[StoredPart]:
    """The stored tensors, or parts of them, in `local`: the rows of a parameter from `first` on, along its axis 0.

    `name` and `shape` are of the whole parameter. A whole parameter is the case `first` = 0.
    """
    if not local.shape or not len(local):
        if not local.shape:
            yield StoredPart(name, (), (), local)
        return
    experts = _EXPERTS.fullmatch(name)
    if experts is None:
        yield StoredPart(name, tuple(shape), (first, *(0 for _ in shape[1:])), local)
        return
    halves = _HALVES[experts["kind"]]
    rows = shape[1] // len(halves)
    for index in range(len(local)):
        for number, half in enumerate(halves):
            stored = f"{experts['layer']}.{first + index}.{half}.weight"
            yield StoredPart(stored, (rows, shape[2]), (0, 0), local[index, number * rows : (number + 1) * rows])
