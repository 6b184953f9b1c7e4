"""Published weights: whole tensors, each gathered to the one rank that stages it, as many bytes to each rank as can be.

Tensor by tensor, so that a rank never holds more than its shard, its part of the weights and one whole tensor. Gathered
in the type that is published, and by the hub's names (`stored_names`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import distributed

from rljob_workers.models.share import WeightShare, layout_digest
from rljob_workers.trainers.fsdp.loading import local_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.fsdp.stored_names import StoredLayout

ROUND_BYTES = 1 << 30
"""Of the tensors that are gathered in one go: signs of life have a limit, which the size of a model must not exceed."""


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


def rounds(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """The names in their order, as many together as stay within the limit, and one at least."""
    cut: list[list[str]] = [[]]
    room = limit
    for name, size in sizes.items():
        if cut[-1] and size > room:
            cut.append([])
            room = limit
        cut[-1].append(name)
        room -= size
    return cut


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

    def stage(self) -> dict[str, torch.Tensor]:
        """This rank's part, on the host, in memory of its own; a collective."""
        staged: dict[str, torch.Tensor] = {}
        scratch = self._scratch()
        for number, names in enumerate(self._rounds, start=1):
            with self._group.collective(f"the weights of a version, round {number} of {len(self._rounds)}"):
                for name in names:
                    tensor = self._tensors[name]
                    whole = self._whole(tensor, self._owners[name], scratch)
                    if whole is not None:
                        staged |= {part.name: part.values for part in self._layout.parts(name, whole, 0)}
        return staged

    def _scratch(self) -> torch.Tensor:
        """Room for this rank's rows of any tensor; one for all, since holes between what is kept would add up."""
        largest = max(self._tensors.values(), key=self._piece_size)
        return torch.empty(self._piece_size(largest), dtype=self._dtype, device=local_rows(largest)[0].device)

    def _piece_size(self, tensor: torch.Tensor) -> int:
        """Elements of what each rank brings to a gather: pieces of one length, the first rank's."""
        return self._rows(tensor) * math.prod(tensor.shape[1:])

    def _rows(self, tensor: torch.Tensor) -> int:
        return -(-tensor.shape[0] // self._group.world) if tensor.dim() else 1

    def _whole(self, tensor: torch.Tensor, owner: int, scratch: torch.Tensor) -> torch.Tensor | None:
        """All rows of a tensor, on the host of its owner; None on the other ranks."""
        local, _ = local_rows(tensor)
        if self._group.world == 1 or not _is_sharded(tensor):
            return local.to("cpu", self._dtype, copy=True) if self._group.rank == owner else None
        piece = scratch[: self._piece_size(tensor)].view(self._rows(tensor), *tensor.shape[1:])
        piece[: len(local)] = local
        if self._group.rank != owner:
            distributed.gather(piece, dst=owner)
            return None
        whole = piece.new_empty((len(piece) * self._group.world, *tensor.shape[1:]))
        distributed.gather(piece, list(whole.chunk(self._group.world)), dst=owner)
        return whole[: tensor.shape[0]].cpu()


def _is_sharded(tensor: torch.Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)
