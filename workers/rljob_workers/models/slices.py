"""The state of a trainer in a checkpoint: float32 slices of whole tensors, by Hugging Face's names, and JSON.

Each rank has two files, `{role}-{rank}.safetensors` and `{role}-{rank}.json`. A slice of a `kind` (parameter, exp_avg,
exp_avg_sq) is the tensor `kind/name`, and where a rank has several of a tensor `kind/name@offset` from the second on;
the JSON has the global shape that it is a part of, and its offset. So a checkpoint does not depend on how many ranks
wrote it. Written by the checkpoint store, read by trainers. No pickle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_workers.models.blob import read_blob

if TYPE_CHECKING:
    import torch

PARAMETER, EXP_AVG, EXP_AVG_SQ = "parameter", "exp_avg", "exp_avg_sq"
STEPS = "optimizer.steps"
"""The JSON value with the number of optimizer steps taken."""
_OWN = "own"
_AT = "@"
"""Between a key and an offset; in no name of a parameter."""


def _nothing_to_wait_for() -> None:
    """The copies are there."""


@dataclass(frozen=True, slots=True, eq=False)
class StateSlice:
    """A part of one tensor of the state."""

    kind: str
    name: str
    """Of the parameter that it belongs to."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    offset: tuple[int, ...]
    """Where the part begins, along each axis."""
    values: torch.Tensor
    """float32."""


@dataclass(frozen=True, slots=True, eq=False)
class StateShare:
    """What one rank saves: host copies that do not change."""

    slices: Sequence[StateSlice] = ()
    own: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What is this rank's alone, of any type: its random state."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """JSON values that all ranks have alike; the lowest rank that has any counts."""
    wait: Callable[[], None] = _nothing_to_wait_for
    """Returns when the copies are there, which may be made while training goes on; raises what they failed of."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of its file; waits for their copies."""
        self.wait()
        own = {f"{_OWN}/{name}": tensor for name, tensor in self.own.items()}
        return {key: one.values for key, one in self._by_key().items()} | own

    def description(self) -> bytes:
        """The JSON beside it."""
        places = {key: {"shape": one.shape, "offset": one.offset} for key, one in self._by_key().items()}
        return json.dumps({"values": dict(self.values), "slices": places}).encode()

    def _by_key(self) -> dict[str, StateSlice]:
        """Each slice by its name in the file."""
        found: dict[str, StateSlice] = {}
        for one in self.slices:
            key = f"{one.kind}/{one.name}"
            found[key if key not in found else f"{key}{_AT}{','.join(map(str, one.offset))}"] = one
        return found


def state_files(role: str, rank: int) -> tuple[str, str]:
    """The tensors and the description of one rank."""
    return f"{role}-{rank:05}.safetensors", f"{role}-{rank:05}.json"


class SavedState:
    """The state in a checkpoint folder, of all ranks that wrote it. Mapped: readers copy it."""

    def __init__(self, folder: Path, role: str) -> None:
        """Raises ValueError where the folder has no state of this role."""
        self._folder = folder
        self._role = role
        self.values: Mapping[str, Any] = {}
        """The JSON values."""
        self.kinds: set[str] = set()
        """Those that there are slices of."""
        self._slices: dict[str, list[tuple[tuple[int, ...], tuple[int, ...], torch.Tensor]]] = {}
        descriptions = sorted(folder.glob(f"{role}-[0-9]*.json"))
        if not descriptions:
            raise ValueError(f"checkpoint: {folder} has no state of {role}. Restore the folder from a copy.")
        for path in descriptions:
            self._read(path)

    def own(self, rank: int) -> Mapping[str, torch.Tensor]:
        """What rank `rank` saved for itself; nothing for a rank that did not exist then."""
        path = self._folder / state_files(self._role, rank)[0]
        if not path.exists():
            return {}
        prefix = f"{_OWN}/"
        return {key.removeprefix(prefix): one for key, one in read_blob(path).items() if key.startswith(prefix)}

    def names(self, kind: str) -> set[str]:
        """Of the parameters that there are slices of."""
        return {key.removeprefix(f"{kind}/") for key in self._slices if key.startswith(f"{kind}/")}

    def difference(self, kind: str, shapes: Mapping[str, Sequence[int]]) -> str | None:
        """The first tensor that is of another shape, unknown, or not there whole, as part of a sentence; None: none."""
        for name in sorted(self.names(kind)):
            if name not in shapes:
                return f"{kind} of {name} is not of this model"
        for name, shape in shapes.items():
            parts = self._slices.get(f"{kind}/{name}", [])
            saved = {one_shape for one_shape, _, _ in parts}
            if saved != {tuple(shape)}:
                return f"{kind} of {name} has shape {sorted(saved)}, not {list(shape)}"
            if sum(values.numel() for _, _, values in parts) != prod(shape):
                return f"{kind} of {name} is not there whole"
        return None

    def check(self, kind: str, shapes: Mapping[str, Sequence[int]]) -> None:
        """ValueError that names the first tensor that is of another shape, unknown, or not there whole."""
        if how := self.difference(kind, shapes):
            raise ValueError(self._differs(how))

    def fill(self, kind: str, targets: Mapping[str, torch.Tensor]) -> None:
        """Copies every slice of a kind into the whole tensors `targets`, by name; `check` comes first."""
        for name, target in targets.items():
            for _, offset, values in self._slices[f"{kind}/{name}"]:
                place = tuple(slice(start, start + size) for start, size in zip(offset, values.shape, strict=True))
                target[place].copy_(values)

    def fill_part(self, kind: str, name: str, offset: Sequence[int], target: torch.Tensor) -> None:
        """Copies into `target`, the part of a tensor that begins at `offset`, what slices have of it; `check` first."""
        ends = [start + length for start, length in zip(offset, target.shape, strict=True)]
        for _, begins, values in self._slices[f"{kind}/{name}"]:
            stops = [start + length for start, length in zip(begins, values.shape, strict=True)]
            first = [max(pair) for pair in zip(offset, begins, strict=True)]
            last = [min(pair) for pair in zip(ends, stops, strict=True)]
            if all(start < stop for start, stop in zip(first, last, strict=True)):
                target[_places(first, last, offset)].copy_(values[_places(first, last, begins)])

    def _read(self, path: Path) -> None:
        description = json.loads(path.read_bytes())
        self.values = self.values or description["values"]
        tensors = read_blob(path.with_suffix(".safetensors"))
        for key, place in description["slices"].items():
            entry = (tuple(place["shape"]), tuple(place["offset"]), tensors[key])
            self._slices.setdefault(key.partition(_AT)[0], []).append(entry)
            self.kinds.add(key.partition("/")[0])

    def _differs(self, how: str) -> str:
        return (
            f"checkpoint: the optimizer's state in {self._folder} is of another model ({how}). "
            "Give checkpoint.path a folder of this job, or an empty one."
        )


def _places(first: Sequence[int], last: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    """[first, last) along each axis, counted from `origin`."""
    return tuple(slice(start - zero, stop - zero) for start, stop, zero in zip(first, last, origin, strict=True))
