"""Weights between a transformers model and stored tensors: names and shapes as the hub has them, loading, export.

Used by the sharded trainer and the forward model. Published weights are whole tensors, each gathered to the one rank
that stages it, as many bytes to each rank as can be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import distributed

from rljob_workers.models.blob import WeightShare, layout_digest, read_weights, rounds
from rljob_workers.models.building import check_shapes
from rljob_workers.models.weights import Bucket

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PreTrainedModel

    from rljob_workers.trainers.data_parallel import DataParallelGroup


_LAYOUT = "rljob_stored_layout"


PASSED_OVER = "_keys_to_ignore_on_load_unexpected"
"""Where a model of transformers has patterns of the names of stored tensors that it does not read."""


_EXPERT_AXES = 3


_STAND_IN_ROWS, _STAND_IN_WIDTH = 12, 2
"""Of an expert's stand-in: its rows can be cut into 2, 3, 4 and 6 equal shares."""


_Stored: TypeAlias = str | tuple[tuple[str, ...], ...]
"""The name of the whole tensor; or, for each expert, the names of the shares that stand one below the other."""


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


class StoredLayout:
    """What becomes of each parameter, and each buffer that folders hold, of one model. Pure."""

    def __init__(self, stored: Mapping[str, _Stored], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Both by names in memory; `shapes` are those in memory, of whole tensors."""
        self._stored = stored
        self._shapes = shapes

    def shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        """The stored tensors of a tensor in memory, with their shapes."""
        stored, shape = self._stored[name], self._shapes[name]
        if isinstance(stored, str):
            return {stored: shape}
        _, rows, width = shape
        return {one: (rows // len(shares), width) for shares in stored for one in shares}

    def parts(self, name: str, local: torch.Tensor, first: int) -> Iterator[StoredPart]:
        """The stored tensors, or parts of them, in `local`: the rows of a tensor from `first` on, along its axis 0.

        A whole tensor is the case `first` = 0.
        """
        stored, shape = self._stored[name], self._shapes[name]
        if not local.shape:
            assert isinstance(stored, str), "a number is no expert"
            yield StoredPart(stored, (), (), local)
        elif isinstance(stored, str):
            if len(local):
                yield StoredPart(stored, shape, (first, *(0 for _ in shape[1:])), local)
        else:
            yield from _experts(stored[first : first + len(local)], local)


def bind_layout(model: PreTrainedModel) -> None:
    """Finds the layout and leaves it with the model. ValueError where tensors are stored as nothing here writes them.

    transformers converts small stand-ins, each element of which is another number, so that the result shows what went
    where: no weight is touched, and none needs to be there.
    """
    from transformers.core_model_loading import revert_weight_conversion

    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    stand_ins: dict[str, torch.Tensor] = {}
    owners: dict[int, str] = {}
    count = 0
    for name, shape in shapes.items():
        small = _stand_in_shape(shape)
        stand_ins[name] = torch.arange(count, count + prod(small)).view(small)
        owners |= dict.fromkeys(range(count, count + prod(small)), name)
        count += prod(small)
    try:
        converted = revert_weight_conversion(model, dict(stand_ins))
    except (RuntimeError, ValueError, KeyError, AttributeError) as error:
        raise _unknown(model, str(error)) from error
    pieces: dict[str, list[tuple[int, int, str]]] = {name: [] for name in shapes}
    for stored, tensor in converted.items():
        numbers = tensor.flatten().tolist()
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise _unknown(model, stored)
        pieces[owners[numbers[0]]].append((numbers[0], len(numbers), stored))
    stored_as = {}
    for name, found in pieces.items():
        layout = _stored_as(sorted(found), stand_ins[name])
        if layout is None:
            raise _unknown(model, name)
        stored_as[name] = layout
    setattr(model, _LAYOUT, StoredLayout(stored_as, shapes))


def layout_of(model: PreTrainedModel) -> StoredLayout:
    """What `bind_layout` left with it."""
    layout: StoredLayout = getattr(model, _LAYOUT)
    return layout


def _experts(stored: tuple[tuple[str, ...], ...], local: torch.Tensor) -> Iterator[StoredPart]:
    _, rows, width = local.shape
    for shares, matrix in zip(stored, local, strict=True):
        height = rows // len(shares)
        for number, name in enumerate(shares):
            yield StoredPart(name, (height, width), (0, 0), matrix[number * height : (number + 1) * height])


def _stand_in_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """As many experts as there are, since each has a name; the rest small."""
    if len(shape) == _EXPERT_AXES:
        return (shape[0], _STAND_IN_ROWS, _STAND_IN_WIDTH)
    return (_STAND_IN_WIDTH,) * len(shape)


def _stored_as(pieces: list[tuple[int, int, str]], stand_in: torch.Tensor) -> _Stored | None:
    """`pieces` are (first number, how many, stored name), in order. None where they are neither whole nor shares."""
    first, size = int(stand_in.flatten()[0]), stand_in.numel()
    if [(start, length) for start, length, _ in pieces] == [(first, size)]:
        return pieces[0][2]
    if stand_in.dim() != _EXPERT_AXES:
        return None
    of_one = stand_in[0].numel()
    experts = {
        index: tuple(name for _, _, name in shares)
        for index, shares in groupby(pieces, key=lambda piece: (piece[0] - first) // of_one)
    }
    lengths = {length for _, length, _ in pieces}
    if len(experts) != len(stand_in) or {len(names) * length for names in experts.values() for length in lengths} != {
        of_one
    }:
        return None
    return tuple(experts[index] for index in range(len(stand_in)))


def _unknown(model: PreTrainedModel, what: str) -> ValueError:
    return ValueError(
        f"model.path: its config.json has model_type {model.config.model_type!r}, whose files have tensors in another"
        f" form than its weights in memory ({what}), and nothing here writes them. Give a model of another family."
    )


def load_folder(model: PreTrainedModel, path: Path) -> None:
    """From a safetensors file, a Hugging Face folder, a folder of parts, or a checkpoint folder. See `load_weights`."""
    load_weights(model, read_weights(path), source=f"the weights in {path}")


def load_weights(model: PreTrainedModel, stored: Mapping[str, torch.Tensor], *, source: str) -> None:
    """Copies stored tensors into the model, in its type; ValueError, and nothing changed, where they do not fit.

    A head that is tied to the embedding may be there or not; it is not read, and nor is what transformers ignores.
    """
    spare = {name: tuple(tensor.shape) for name, tensor in stored.items() if _is_not_read(model, name)}
    check_shapes(stored, weight_shapes(model), spare, source=source)
    with torch.no_grad():
        for part in own_parts(model):
            part.values.copy_(stored[part.name][part.place])


def weight_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Stored name -> shape of every weight, in the model's order, the same on every rank."""
    layout = layout_of(model)
    return {stored: shape for name in stored_tensors(model) for stored, shape in layout.shapes(name).items()}


def own_parts(model: PreTrainedModel) -> Iterator[StoredPart]:
    """What this rank holds of the stored tensors; the parts' values are views of its shard."""
    layout = layout_of(model)
    for name, parameter in stored_tensors(model).items():
        yield from layout.parts(name, *local_rows(parameter))


def local_rows(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """This rank's rows of a tensor, as a view, and the first one's number. All of them where it is not sharded.

    FSDP cuts along axis 0 into as many pieces as there are ranks, all of the first one's length but the last ones.
    """
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return tensor.detach(), 0
    local = tensor.to_local().detach()
    piece = -(-tensor.shape[0] // tensor.device_mesh.size())
    return local, min(piece * tensor.device_mesh.get_local_rank(), tensor.shape[0])


def stored_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Parameters, each once, and the buffers that folders hold."""
    parameters = dict(model.named_parameters())
    tied = _tied_names(model)
    others = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if name not in parameters}
    return {**parameters, **{name: tensor for name, tensor in others.items() if name not in tied}}


def _is_not_read(model: PreTrainedModel, stored: str) -> bool:
    """A head that is tied, or what transformers passes over, too: buffers that older files of a family hold."""
    layout = layout_of(model)
    if any(stored in layout.shapes(name) for name in _tied_names(model)):
        return True
    passed_over = getattr(model, PASSED_OVER, None) or ()
    return any(re.search(pattern, stored) for pattern in passed_over)


def _tied_names(model: PreTrainedModel) -> set[str]:
    """Second names of parameters."""
    return {name for name, _ in model.named_parameters(remove_duplicate=False)} - dict(model.named_parameters()).keys()


ROUND_BYTES = 1 << 30
"""Of the tensors that are gathered in one go: pulses have a limit, which the size of a model must not exceed."""


def assign(sizes: Mapping[str, int], world: int) -> dict[str, int]:
    """Name -> rank that stages it. Where there are fewer tensors than ranks the last ranks have none.

    The largest first, each to the rank that has least: no rank has more than the even share and one tensor. A function
    of its arguments alone, their order included: all ranks come to the same.
    """
    loads, owners = [0] * world, {}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        owner = min(range(world), key=loads.__getitem__)
        owners[name] = owner
        loads[owner] += sizes[name]
    return {name: owners[name] for name in sizes}


class Export:
    """How the weights of one model leave it, on one rank."""

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        layout: StoredLayout,
        dtype: torch.dtype,
        group: DataParallelGroup,
    ) -> None:
        """`tensors` are parameters and buffers by their names in memory, sharded or whole; `dtype` is published."""
        self._tensors = tensors
        self._layout = layout
        self._dtype = dtype
        self._group = group
        sizes = {name: tensor.numel() * dtype.itemsize for name, tensor in tensors.items()}
        self._owners = assign(sizes, group.world)
        self._rounds = rounds(sizes, ROUND_BYTES)

    @property
    def share(self) -> WeightShare | None:
        """This rank's part; None where it was assigned nothing."""
        parts: list[dict[str, Sequence[int]]] = [{} for _ in range(max(self._owners.values()) + 1)]
        for name in self._tensors:
            parts[self._owners[name]].update(self._layout.shapes(name))
        if self._group.rank >= len(parts):
            return None
        return WeightShare(self._group.rank, len(parts), layout_digest(parts))

    def buckets(self) -> Iterator[Bucket]:
        """This rank's part, round by round, in memory of its own; a collective."""
        scratch = self._scratch()
        for number, names in enumerate(self._rounds, start=1):
            found: dict[str, torch.Tensor] = {}
            with self._group.collective(f"the weights of a version, round {number} of {len(self._rounds)}"):
                for name in names:
                    whole = self._whole(self._tensors[name], self._owners[name], scratch)
                    if whole is not None:
                        found |= {part.name: part.values for part in self._layout.parts(name, whole, 0)}
            yield Bucket(found, is_live=False)

    def _scratch(self) -> torch.Tensor:
        """Room for this rank's rows of any tensor; one for all, since holes between retained buffers would add up."""
        largest = max(self._tensors.values(), key=self._piece_size)
        return torch.empty(self._piece_size(largest), dtype=self._dtype, device=local_rows(largest)[0].device)

    def _piece_size(self, tensor: torch.Tensor) -> int:
        """Elements of what each rank brings to a gather: pieces of one length, the first rank's."""
        return self._rows(tensor) * math.prod(tensor.shape[1:])

    def _rows(self, tensor: torch.Tensor) -> int:
        return -(-tensor.shape[0] // self._group.world) if tensor.dim() else 1

    def _whole(self, tensor: torch.Tensor, owner: int, scratch: torch.Tensor) -> torch.Tensor | None:
        """All rows of a tensor, on its owner; None on the other ranks."""
        local, _ = local_rows(tensor)
        if self._group.world == 1 or not _is_sharded(tensor):
            return local.to(self._dtype, copy=True) if self._group.rank == owner else None
        piece = scratch[: self._piece_size(tensor)].view(self._rows(tensor), *tensor.shape[1:])
        piece[: len(local)] = local
        if self._group.rank != owner:
            distributed.gather(piece, dst=owner)
            return None
        whole = piece.new_empty((len(piece) * self._group.world, *tensor.shape[1:]))
        distributed.gather(piece, list(whole.chunk(self._group.world)), dst=owner)
        return whole[: tensor.shape[0]]


def _is_sharded(tensor: torch.Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)
