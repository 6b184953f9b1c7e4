"""How the rows of one micro-batch become the packed inputs of Megatron, on one rank. Pure: index arithmetic, no model.

All rows stand back to back in one sequence. Each is padded at its end, which no token before it sees, to a multiple
that sequence and context parallelism can cut. A row's last token is not computed: it predicts nothing. Context rank r
of c has, of each row in 2 c chunks, chunks r and 2 c - 1 - r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.row_blocks import RowBlocks, row_blocks

if TYPE_CHECKING:
    from rljob_workers.trainers.micro_batches import RowRange

ROTARY_STEP = 256
"""The longest row is rounded up to a multiple: Megatron makes a table of angles for each, and retains 32 of them."""


@dataclass(frozen=True, slots=True)
class Context:
    """This rank's number among those that share each row's tokens."""

    rank: int = 0
    size: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class PackedInputs:
    """One micro-batch on one rank. Integers are int64 on the model's device, unless it says otherwise."""

    token_ids: torch.Tensor
    """[1, tokens], this rank's."""
    ends: torch.Tensor
    """[rows + 1] int32: where each padded row ends in the sequence of all context ranks; the first number is 0."""
    longest: int
    """Padded tokens of the longest row, rounded up."""
    blocks: RowBlocks | None
    """Rows of similar length; None where rows are cut over ranks."""
    predicting: torch.Tensor
    """[own responses]: this rank's places of tokens that a response token follows."""
    targets: torch.Tensor
    """[own responses]: those response tokens."""
    slots: torch.Tensor
    """[own responses]: their numbers among all response tokens of the rows, in order."""
    num_responses: int
    """Of all ranks."""
    rows: torch.Tensor
    """[own tokens] on the host: the row of each, from 0; of padding their number."""
    row_lengths: torch.Tensor
    """[rows] on the host: computed tokens of each, on all ranks."""


def packed_inputs(
    tokens: Jagged,
    response_lengths: torch.Tensor,
    part: RowRange,
    multiple: int,
    context: Context,
    device: torch.device,
) -> PackedInputs:
    """The rows of `part`. No rows at all are one padded row of which nothing is asked: other stages wait for a pass."""
    offsets = tokens.offsets[part.start : part.stop + 1]
    responses = response_lengths[part.start : part.stop]
    all_lengths = offsets.diff() - 1
    lengths = all_lengths[all_lengths > 0]
    padded = -(-lengths // multiple) * multiple if len(lengths) else torch.tensor([multiple])
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), padded.cumsum(0)])
    ids = torch.zeros(int(ends[-1]), dtype=torch.int64)
    rows = torch.full_like(ids, len(all_lengths))
    if len(lengths):
        sources, places = _ranges(offsets[:-1][all_lengths > 0], lengths), _ranges(ends[:-1], lengths)
        ids[places] = tokens.values[sources].long()
        rows[places] = torch.repeat_interleave(torch.nonzero(all_lengths > 0)[:, 0], lengths)
    starts = torch.zeros(len(all_lengths), dtype=torch.int64)
    starts[all_lengths > 0] = ends[:-1][: len(lengths)]
    first = offsets.diff() - responses  # of the response, within its row
    predicting = _ranges(starts + first - 1, responses)
    targets = tokens.values[_ranges(offsets[:-1] + first, responses)].long()
    slots = torch.arange(len(predicting))
    if context.size > 1:
        rank_of, place_of = _cut(padded, ends, context.size)
        own = rank_of == context.rank
        local = torch.empty(2, int(own.sum()), dtype=torch.int64)
        local[:, place_of[own]] = torch.stack([ids, rows])[:, own]
        ids, rows = local
        asked = own[predicting]
        slots, targets, predicting = slots[asked], targets[asked], place_of[predicting[asked]]
    return PackedInputs(
        token_ids=ids[None].to(device),
        ends=ends.to(torch.int32).to(device),
        longest=-(-int(padded.max()) // ROTARY_STEP) * ROTARY_STEP,
        blocks=row_blocks(padded, ends[:-1], device) if context.size == 1 else None,
        predicting=predicting.to(device),
        targets=targets.to(device),
        slots=slots.to(device),
        num_responses=int(responses.sum()),
        rows=rows,
        row_lengths=all_lengths.clamp(min=0),
    )


def _ranges(starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Every number from each start on, `lengths` many, one range after the other."""
    before = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) + torch.repeat_interleave(starts - before, lengths)


def _cut(padded: torch.Tensor, ends: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which context rank has each token of the sequence, and at which of its own places; both [tokens]."""
    row = torch.repeat_interleave(torch.arange(len(padded)), padded)
    within = torch.arange(int(ends[-1])) - ends[:-1][row]
    chunk_length = (padded // (2 * size))[row]
    chunk = within // chunk_length
    is_early = chunk < size
    rank_of = torch.where(is_early, chunk, 2 * size - 1 - chunk)
    place_of = ends[:-1][row] // size + torch.where(is_early, 0, chunk_length) + within % chunk_length
    return rank_of, place_of
