"""Rows of packed sequences in blocks of similar length, so that attention over them takes few kernel calls. Pure.

For the backends whose attention is torch's kernel: Fsdp and Megatron.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rljob_workers.trainers.micro_batches import cut_by_length


@dataclass(frozen=True, slots=True, eq=False)
class RowBlocks:
    """Where the rows of a joined sequence lie: what attention needs."""

    blocks: tuple[torch.Tensor, ...]
    """Each [rows, longest] int64: places in the sequence of the tokens of rows of similar length. Behind a row's end
    its last token is repeated: a causal row never sees it, and what is computed there is not read."""
    slot_of_token: torch.Tensor
    """[tokens] int64: where in all blocks, one after the other, each token's result lies."""


def row_blocks(lengths: torch.Tensor, starts: torch.Tensor, device: torch.device) -> RowBlocks:
    """Of rows of these lengths that begin at `starts`, both [rows] int64; rows of no tokens are in no block."""
    blocks, slots = [], np.empty(int(lengths.sum()), np.int64)
    all_lengths, all_starts = lengths.numpy(), starts.numpy()
    num_slots = 0
    for members in cut_by_length(all_lengths):
        rows = members[all_lengths[members] > 0]
        if not len(rows):
            continue
        longest = int(all_lengths[rows].max())
        grid = np.broadcast_to(np.arange(longest), (len(rows), longest))
        block = all_starts[rows][:, None] + np.minimum(grid, all_lengths[rows][:, None] - 1)
        is_token = grid < all_lengths[rows][:, None]
        slots[block[is_token]] = num_slots + np.flatnonzero(is_token.ravel())
        num_slots += block.size
        blocks.append(torch.from_numpy(block).to(device))
    return RowBlocks(tuple(blocks), torch.from_numpy(slots).to(device))
