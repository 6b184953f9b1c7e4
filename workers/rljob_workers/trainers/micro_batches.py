"""How rows become forward passes: cut into micro-batches, and the rows of each laid out for attention.

Pure: index arithmetic, no model, no weights. One plan for all trainers and forward models.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from rljob_workers.devices import moved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rljob_workers.tensors.jagged import Jagged


@dataclass(frozen=True, slots=True)
class MicroBatchLimits:
    """What one forward and backward pass takes at most; None where something is not bounded."""

    rows: int | None = None
    tokens: int | None = None
    """Of prompts and responses together."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows [start, stop) of a slice, and their response tokens [first_token, last_token)."""

    start: int
    stop: int
    first_token: int
    last_token: int


def cut(tokens: Jagged, response_lengths: torch.Tensor, limits: MicroBatchLimits, *, count: int = 0) -> list[RowRange]:
    """The micro-batches of rows of `tokens`, of which the last `response_lengths` [rows] are responses.

    At least `count` of them, empty ones last: what ranks do together they do equally often.
    """
    ends = [0, *response_lengths.cumsum(0).tolist()]
    cuts = [0, *_stops(tokens.offsets.diff().tolist(), limits)]
    ranges = [RowRange(start, stop, ends[start], ends[stop]) for start, stop in pairwise(cuts)]
    end = RowRange(cuts[-1], cuts[-1], ends[-1], ends[-1])
    return ranges + [end] * (count - len(ranges))


def count_micro_batches(lengths: Sequence[int], limits: MicroBatchLimits) -> int:
    """Into how many `cut` cuts rows of these lengths, prompts and responses together."""
    return sum(1 for _ in _stops(lengths, limits))


def _stops(lengths: Sequence[int], limits: MicroBatchLimits) -> Iterator[int]:
    """Where each micro-batch ends."""
    rows = tokens = 0
    for row, length in enumerate(lengths):
        is_full = rows == limits.rows or (limits.tokens is not None and tokens + length > limits.tokens)
        if rows and is_full:
            yield row
            rows = tokens = 0
        rows, tokens = rows + 1, tokens + length
    if rows:
        yield len(lengths)


Indices = npt.NDArray[np.int64]


SHORT_ROW_TOKENS = 32
"""Rows up to this length share sequences. Above it a sequence costs more than the kernel's fixed cost."""


SHARED_SEQUENCE_TOKENS = 64
"""Room of a shared sequence: its attention is quadratic in this, and the kernels' tiles are about as large."""


LONGEST_SHARED_PROMPT = 1024
"""Longer prompts are not shared: the mask of a sequence is quadratic in its length."""


FREE_PADDING_TOKENS = 256
"""A block may carry this much padding before another block, which costs a kernel call per layer, is cheaper."""


PADDING_SHARE = 8
"""Beyond that a block's padding stays below 1/8 of its slots."""


_Part = tuple["AttentionBlock", Indices, Indices]
"""A block, and the row and position of each of its slots, both [sequences, length] (padding: position -1)."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBlock:
    """Sequences of one padded length."""

    slots: torch.Tensor
    """[sequences, length] int64: the flat token in each slot; padding repeats some token and is never read."""
    mask: torch.Tensor | None
    """[sequences, 1, length, length] bool, True where a slot (dim 2) sees another (dim 3). None: plain causal."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """The plan of one micro-batch. All tensors int64."""

    token_index: torch.Tensor
    """[flat]: index into the micro-batch's token values."""
    positions: torch.Tensor
    """[flat]: position of the token in its row."""
    blocks: tuple[AttentionBlock, ...]
    slot_of_token: torch.Tensor
    """[flat]: a slot that holds the token, counted through all blocks."""
    predicting: torch.Tensor
    """[predictors]: the flat tokens whose next token is a response token."""
    predictor: torch.Tensor
    """[responses]: index into `predicting` for each response token."""
    target_index: torch.Tensor
    """[responses]: index of the response token itself into the token values."""

    def moved(self, device: torch.device) -> PackedRows:
        """The plan on `device`, but for what names tokens, which lie on the host."""
        if device.type == "cpu":
            return self
        return PackedRows(
            token_index=self.token_index,
            positions=moved(self.positions, device),
            blocks=tuple(
                AttentionBlock(moved(one.slots, device), None if one.mask is None else moved(one.mask, device))
                for one in self.blocks
            ),
            slot_of_token=moved(self.slot_of_token, device),
            predicting=moved(self.predicting, device),
            predictor=moved(self.predictor, device),
            target_index=self.target_index,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Lengths and places of rows; `own` tokens are those after the prompt that are computed."""

    prompt_lengths: Indices
    own_lengths: Indices
    prefix: Indices
    """Which distinct prompt the row has, numbered by first appearance."""
    prompt_starts: Indices
    """Flat place of the row's prompt."""
    own_starts: Indices
    """Flat place of the row's own tokens."""

    @property
    def lengths(self) -> Indices:
        return self.prompt_lengths + self.own_lengths

    def flat(self, row: Indices, position: Indices) -> Indices:
        """The flat token at `position` of `row` (element-wise)."""
        prompt = self.prompt_lengths[row]
        in_prompt = self.prompt_starts[row] + position
        return np.where(position < prompt, in_prompt, self.own_starts[row] + position - prompt)


def pack(tokens: torch.Tensor, offsets: torch.Tensor, response_lengths: torch.Tensor) -> PackedRows:
    """Plans one micro-batch.

    Args:
        tokens: values of all rows, back to back, [total].
        offsets: [rows + 1]; row i is tokens[offsets[i]:offsets[i + 1]]; offsets[0] need not be 0.
        response_lengths: [rows]; the response is the tail of its row.

    Returns:
        The plan; `token_index` and `target_index` count from the start of `tokens`.
    """
    starts: Indices = offsets[:-1].numpy()
    responses: Indices = response_lengths.numpy()
    prompts = offsets.diff().numpy() - responses
    _check(prompts, responses)
    prefix, owners = _distinct_prompts(tokens.numpy(), starts, prompts)
    prompt_starts = _exclusive_sum(prompts[owners])
    num_prompt_tokens = int(prompts[owners].sum())
    own = np.maximum(responses - 1, 0)
    rows = _Rows(prompts, own, prefix, prompt_starts[prefix], num_prompt_tokens + _exclusive_sum(own))
    blocks, slot_rows, slot_positions = _blocks(rows)
    flat_rows = np.concatenate([owners, np.arange(len(responses))])
    flat_lengths = np.concatenate([prompts[owners], own])
    first_position = np.concatenate([np.zeros(len(owners), np.int64), prompts])
    positions = _ranges(first_position, flat_lengths)
    first_of_response = np.repeat(np.arange(len(responses)), responses)
    index_in_response = _ranges(np.zeros(len(responses), np.int64), responses)
    predictor = np.where(
        index_in_response == 0,
        prefix[first_of_response],
        len(owners) + (rows.own_starts - num_prompt_tokens)[first_of_response] + index_in_response - 1,
    )
    last_prompt_tokens = prompt_starts + prompts[owners] - 1
    predicting = np.concatenate([last_prompt_tokens, np.arange(num_prompt_tokens, num_prompt_tokens + own.sum())])
    return PackedRows(
        token_index=torch.from_numpy(np.repeat(starts[flat_rows], flat_lengths) + positions),
        positions=torch.from_numpy(positions),
        blocks=blocks,
        slot_of_token=torch.from_numpy(_slots_of_tokens(rows, slot_rows, slot_positions, len(positions))),
        predicting=torch.from_numpy(predicting),
        predictor=torch.from_numpy(predictor),
        target_index=torch.from_numpy((starts + prompts)[first_of_response] + index_in_response),
    )


def _check(prompts: Indices, responses: Indices) -> None:
    if len(responses) == 0:
        raise ValueError("tokens: a micro-batch of 0 rows cannot be packed. Give at least one row.")
    bad = np.flatnonzero((prompts < 1) | (responses < 0))
    if len(bad):
        row = int(bad[0])
        raise ValueError(
            f"response_lengths: row {row} has {int(responses[row])} response tokens of "
            f"{int(prompts[row] + responses[row])} tokens, but a row needs at least one prompt token. "
            "Give every prompt a token (a begin-of-sequence will do)."
        )


def _distinct_prompts(tokens: npt.NDArray[np.generic], starts: Indices, prompts: Indices) -> tuple[Indices, Indices]:
    """For each row its prompt's number, and for each number the first row that has it."""
    numbers: dict[bytes, int] = {}
    owners: list[int] = []
    prefix = np.empty(len(starts), np.int64)
    for row, (start, length) in enumerate(zip(starts.tolist(), prompts.tolist(), strict=True)):
        prefix[row] = number = numbers.setdefault(tokens[start : start + length].tobytes(), len(owners))
        if number == len(owners):
            owners.append(row)
    return prefix, np.array(owners, np.int64)


def _blocks(rows: _Rows) -> tuple[tuple[AttentionBlock, ...], Indices, Indices]:
    """The blocks, and for every slot of all of them its row and position (padding: position -1)."""
    shares = _shares_sequence(rows)
    alone, sharing = np.flatnonzero(~shares), np.flatnonzero(shares)
    parts = [_padded(rows, alone[cut]) for cut in cut_by_length(rows.lengths[alone])]
    if len(sharing):
        parts += _shared_sequences(rows, sharing)
    return (
        tuple(block for block, _, _ in parts),
        np.concatenate([slot_rows.ravel() for _, slot_rows, _ in parts]),
        np.concatenate([slot_positions.ravel() for _, _, slot_positions in parts]),
    )


def _shares_sequence(rows: _Rows) -> npt.NDArray[np.bool_]:
    """Whether each row shares its sequence: all do if all are short, else those for whose prompt it is less work.

    The work is that of attention, quadratic in the length of a sequence; a causal one without a mask takes half.
    """
    if int(rows.lengths.max()) <= SHORT_ROW_TOKENS:
        return np.ones(len(rows.prefix), np.bool_)
    num_prompts = int(rows.prefix.max()) + 1
    prompt = np.zeros(num_prompts, np.int64)
    prompt[rows.prefix] = rows.prompt_lengths
    longest_own = np.zeros(num_prompts, np.int64)
    np.maximum.at(longest_own, rows.prefix, rows.own_lengths)
    own = np.bincount(rows.prefix, weights=rows.own_lengths)
    sequences = np.maximum(1, np.ceil(own / (_room(prompt) - prompt)))
    shared_work = sequences * (prompt + own / sequences) ** 2
    work_alone = np.bincount(rows.prefix, weights=rows.lengths**2) / 2
    fits = (longest_own <= prompt) & (prompt <= LONGEST_SHARED_PROMPT)
    return (fits & (shared_work < work_alone))[rows.prefix]


def _room(prompt: Indices) -> Indices:
    """Length of a shared sequence that a prompt of this length opens: as much again for what follows it."""
    return np.maximum(SHARED_SEQUENCE_TOKENS, 2 * prompt)


def cut_by_length(lengths: Indices) -> list[Indices]:
    """Indices, longest first, cut so that padding to a block's longest stays small. None at all for no lengths."""
    if len(lengths) == 0:
        return []
    order = np.argsort(-lengths, kind="stable")
    cuts: list[int] = [0]
    padding = 0
    for place, length in enumerate(lengths[order].tolist()):
        longest = int(lengths[order[cuts[-1]]])
        padding += longest - length
        if padding > max(FREE_PADDING_TOKENS, longest * (place + 1 - cuts[-1]) // PADDING_SHARE):
            cuts.append(place)
            padding = 0
    return np.split(order, cuts[1:])


def _padded(rows: _Rows, members: Indices) -> _Part:
    lengths = rows.lengths[members][:, None]
    grid = np.broadcast_to(np.arange(int(lengths.max())), (len(members), int(lengths.max())))
    slot_rows = np.broadcast_to(members[:, None], grid.shape)
    slots = rows.flat(slot_rows, np.minimum(grid, lengths - 1))
    return AttentionBlock(torch.from_numpy(slots), None), slot_rows, np.where(grid < lengths, grid, -1)


def _shared_sequences(rows: _Rows, members: Indices) -> list[_Part]:
    """Blocks whose sequences hold several rows each, a shared prompt once per sequence."""
    sequence, opens = _fill_sequences(rows, members)
    lengths = rows.own_lengths[members] + np.where(opens, rows.prompt_lengths[members], 0)
    order = np.lexsort((rows.prefix[members], sequence))  # stable: rows of a prompt stay together, its opener first
    first = np.where(opens, 0, rows.prompt_lengths[members])
    slot_rows = np.repeat(members[order], lengths[order])
    positions = _ranges(first[order], lengths[order])
    used = np.bincount(sequence, weights=lengths).astype(np.int64)
    starts = _exclusive_sum(used)
    return [_shared_block(rows, slot_rows, positions, starts[cut], used[cut]) for cut in cut_by_length(used)]


def _shared_block(rows: _Rows, slot_rows: Indices, positions: Indices, starts: Indices, used: Indices) -> _Part:
    """One block of the sequences whose slots are those from each of `starts`, `used` many."""
    shape = (len(used), int(used.max()))
    at = (np.repeat(np.arange(len(used)), used), _ranges(np.zeros(len(used), np.int64), used))
    chosen = _ranges(starts, used)
    grid_rows, grid_positions = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
    grid_rows[at], grid_positions[at] = slot_rows[chosen], positions[chosen]
    slots = rows.flat(grid_rows, np.maximum(grid_positions, 0))
    block = AttentionBlock(torch.from_numpy(slots), _tree_mask(rows, grid_rows, grid_positions))
    return block, grid_rows, grid_positions


def _fill_sequences(rows: _Rows, members: Indices) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """The sequence of each member, filled prompt by prompt, and whether the row brings its prompt into it."""
    sequence, opens = np.empty(len(members), np.int64), np.zeros(len(members), np.bool_)
    current, room, prompt_here = -1, 0, -1
    rooms = _room(rows.prompt_lengths)
    for place in np.argsort(rows.prefix[members], kind="stable").tolist():
        row = int(members[place])
        prompt, own = int(rows.prompt_lengths[row]), int(rows.own_lengths[row])
        is_new = rows.prefix[row] != prompt_here
        opens_its_own = is_new and rooms[row] > SHARED_SEQUENCE_TOKENS  # beside another prompt it would cost more
        if opens_its_own or own + (prompt if is_new else 0) > room:
            current, room, is_new = current + 1, int(rooms[row]), True
        sequence[place], opens[place] = current, is_new
        room -= own + (prompt if is_new else 0)
        prompt_here = int(rows.prefix[row])
    return sequence, opens


def _tree_mask(rows: _Rows, grid_rows: Indices, grid_positions: Indices) -> torch.Tensor:
    """A slot sees earlier slots of its own row, and the prompt that its row shares. Padding sees padding."""
    is_padding = grid_positions < 0
    prefix = np.where(is_padding, -1, rows.prefix[grid_rows])
    in_prompt = ~is_padding & (grid_positions < rows.prompt_lengths[grid_rows])
    branch = np.where(is_padding | in_prompt, -1, grid_rows)  # -1: the trunk, seen by all rows of the prompt
    same_prompt = prefix[:, :, None] == prefix[:, None, :]
    on_path = (branch[:, None, :] == -1) | (branch[:, :, None] == branch[:, None, :])
    earlier = grid_positions[:, None, :] <= grid_positions[:, :, None]
    return torch.from_numpy(same_prompt & on_path & earlier)[:, None]


def _slots_of_tokens(rows: _Rows, slot_rows: Indices, slot_positions: Indices, num_tokens: int) -> Indices:
    filled = np.flatnonzero(slot_positions >= 0)
    slot_of_token = np.empty(num_tokens, np.int64)
    slot_of_token[rows.flat(slot_rows[filled], slot_positions[filled])[::-1]] = filled[::-1]  # the first slot stays
    return slot_of_token


def _exclusive_sum(lengths: Indices) -> Indices:
    return np.cumsum(lengths) - lengths


def _ranges(starts: Indices, lengths: Indices) -> Indices:
    """start, start + 1, ... of each range, back to back."""
    return np.repeat(starts - _exclusive_sum(lengths), lengths) + np.arange(int(lengths.sum()))
