"""Jagged columns: rows of different lengths as one tensor of values and one of offsets, without padding.

For the queue, the roles and the trainers. Imports torch alone; never stores, sends or pads anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class Jagged:
    """`values` [total, *inner] and `offsets` [rows + 1] (int64, first 0, last total)."""

    values: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def from_rows(cls, rows: Sequence[torch.Tensor]) -> Jagged:
        """Concatenates `rows`, each [length, *inner] of one dtype."""
        lengths = torch.tensor([row.shape[0] for row in rows], dtype=torch.int64)
        return cls.from_lengths(torch.cat(list(rows)), lengths)

    @classmethod
    def from_lengths(cls, values: torch.Tensor, lengths: torch.Tensor) -> Jagged:
        """`values` [sum(lengths), *inner] cut by `lengths` [rows]."""
        offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=offsets[1:])
        return cls(values, offsets)

    @classmethod
    def concat(cls, parts: Sequence[Jagged]) -> Jagged:
        """The rows of all parts (at least one, of one dtype), in order."""
        return cls.from_lengths(torch.cat([part.values for part in parts]), _joined_lengths(parts))

    @classmethod
    def scalars(cls, values: torch.Tensor) -> Jagged:
        """One element a row: `values` [rows, *inner]."""
        return cls(values, torch.arange(values.shape[0] + 1, dtype=torch.int64))

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    @property
    def parts(self) -> tuple[Jagged, ...]:
        """Itself: what a column of several parts has several of."""
        return (self,)

    @property
    def lengths(self) -> torch.Tensor:
        """[rows], int64."""
        return self.offsets.diff()

    def row(self, index: int) -> torch.Tensor:
        """View of one row, [length, *inner]."""
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def rows(self) -> list[torch.Tensor]:
        """Views of all rows."""
        return list(torch.split(self.values, self.lengths.tolist()))

    def select(self, indices: Sequence[int]) -> Jagged:
        """The rows at `indices`, in that order (copies)."""
        if not len(indices):
            return Jagged(self.values[:0], torch.zeros(1, dtype=torch.int64))
        return Jagged.from_rows([self.row(index) for index in indices])

    def nested(self) -> torch.Tensor:
        """Dense [rows, length, *inner] (a view) where all lengths agree, else a `torch.nested` jagged tensor."""
        lengths = self.lengths
        if len(self) and bool((lengths == lengths[0]).all()):
            return self.values.view(len(self), int(lengths[0]), *self.values.shape[1:])
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)


class JaggedParts:
    """A column whose rows lie in several parts, each where it was made: they are joined on the wire."""

    def __init__(self, parts: Sequence[Jagged]) -> None:
        """At least one part, all of one dtype and inner shape."""
        self.parts = tuple(parts)

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    @cached_property
    def offsets(self) -> torch.Tensor:
        """[rows + 1], int64, over all parts."""
        offsets = torch.zeros(sum(map(len, self.parts)) + 1, dtype=torch.int64)
        torch.cumsum(_joined_lengths(self.parts), 0, out=offsets[1:])
        return offsets


Column: TypeAlias = Jagged | JaggedParts


_COPIED_BYTES = 1 << 18
"""Less than this is cheaper copied together than sent in parts."""


def join(parts: Sequence[Jagged]) -> Column:
    """The rows of all parts (at least one), in order; large ones are not copied.

    Raises ValueError where dtypes or inner shapes differ, or where offsets do not fit their values.
    """
    first = parts[0].values
    if len(parts) == 1:
        return parts[0]
    for part in parts:
        if part.values.dtype is not first.dtype or part.values.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"TransferQueue: rows of {part.values.dtype} {list(part.values.shape[1:])} cannot be joined to rows of"
                f" {first.dtype} {list(first.shape[1:])}. Give every group of a put the same dtype and inner shape."
            )
    small = sum(part.values.nbytes for part in parts) < _COPIED_BYTES
    return Jagged.concat(parts) if small else JaggedParts(parts)


def _joined_lengths(parts: Sequence[Jagged]) -> torch.Tensor:
    # One `diff` for all: a put joins many groups, and each tensor operation costs more than its few numbers.
    offsets = torch.cat([part.offsets for part in parts])
    ends = list(accumulate(part.offsets.numel() for part in parts))
    _refuse_misfits(parts, offsets[[0, *ends[:-1]]], offsets[[end - 1 for end in ends]])
    steps = offsets.diff()
    within = torch.ones_like(steps, dtype=torch.bool)
    within[[end - 1 for end in ends[:-1]]] = False
    return steps[within]


def _refuse_misfits(parts: Sequence[Jagged], first: torch.Tensor, last: torch.Tensor) -> None:
    """`first` and `last` offset of each part: a row that reaches beyond its values would be read from another's."""
    for begin, end, part in zip(first.tolist(), last.tolist(), parts, strict=True):
        refuse_misfit("a column", part.values.shape[0], begin, end)


def refuse_misfit(what: str, num_values: int, first: int, last: int) -> None:
    """Raises ValueError where `first` and `last` offset are not the borders of the values."""
    if first != 0 or last != num_values:
        raise ValueError(
            f"TransferQueue: {what} has {num_values} values, and its offsets go from {first} to {last}."
            " Let offsets begin at 0 and end at the number of values."
        )
