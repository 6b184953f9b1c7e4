"""Under which names and shapes parameters are stored: as the hub has them, which engines read, too.

    bind_layout(model)                         # once, before the model is sharded: names do not change after that
    layout_of(model).shapes(name)              # the stored tensors of a parameter
    layout_of(model).parts(name, local, first) # those that lie in a rank's rows of it

In memory the experts of a layer may be one tensor where in a folder each has tensors of its own, and some families have
other names there. transformers knows both ways; it is asked what becomes of each parameter, and what it answers must be
the parameter itself, or equal shares of the rows of its experts. What loads weights, publishes them or saves their
state goes through here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LAYOUT = "rljob_stored_layout"
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

    transformers converts small stand-ins, each element of which is another number, so that the result says what went
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
