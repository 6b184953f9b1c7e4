"""How the rows of one micro-batch become the inputs of a transformers model. Pure: index arithmetic, no model.

Two layouts. *Joined*: all rows back to back in one sequence, without padding; attention alone must know where a row
ends (`sharded_model`). *Padded*: one sequence a row, padded at its end, which no token attends to: exact for
any causal model, at the cost of computing the padding.

A row's last token is not computed in either: it predicts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.row_blocks import RowBlocks, row_blocks


@dataclass(frozen=True, slots=True, eq=False)
class ModelInputs:
    """One micro-batch. Integers are int64, and all on the model's device."""

    token_ids: torch.Tensor
    """[sequences, length]."""
    positions: torch.Tensor | None
    """[1, length], starting at 0 with every row; None: each sequence counts by itself."""
    row_blocks: RowBlocks | None
    """None: each sequence is a row."""
    predicting: torch.Tensor
    """[responses]: for each response token of all rows, in order, the place of the token before it, counted through all
    sequences."""
    targets: torch.Tensor
    """[responses]: the response tokens."""


def joined_inputs(tokens: Jagged, response_lengths: torch.Tensor, device: torch.device) -> ModelInputs:
    """All rows in one sequence. No rows at all make a sequence of one token of which nothing is asked.

    So a rank that has no rows left can still take part in the passes that sharded ranks make together.
    """
    lengths = tokens.lengths - 1
    if not int(lengths.clamp(min=0).sum()):
        return _nothing(device)
    starts = lengths.cumsum(0) - lengths
    row_of_token = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    positions = torch.arange(len(row_of_token)) - starts[row_of_token]
    values = tokens.values.long()
    predicting, targets = _responses(tokens, response_lengths, starts)
    return ModelInputs(
        token_ids=values[tokens.offsets[row_of_token] + positions][None].to(device),
        positions=positions[None].to(device),
        row_blocks=row_blocks(lengths, starts, device),
        predicting=predicting.to(device),
        targets=values[targets].to(device),
    )


def padded_inputs(tokens: Jagged, response_lengths: torch.Tensor, device: torch.device) -> ModelInputs:
    """One sequence a row, as long as the longest. No rows at all are one sequence of one token, as above."""
    lengths = tokens.lengths - 1
    if not int(lengths.clamp(min=0).sum()):
        return replace(_nothing(device), positions=None, row_blocks=None)
    longest = int(lengths.max())
    places = torch.minimum(torch.arange(longest), (lengths - 1).clamp(min=0)[:, None])
    values = tokens.values.long()
    predicting, targets = _responses(tokens, response_lengths, torch.arange(len(lengths)) * longest)
    return ModelInputs(
        token_ids=values[tokens.offsets[:-1, None] + places].to(device),
        positions=None,
        row_blocks=None,
        predicting=predicting.to(device),
        targets=values[targets].to(device),
    )


def rows_between(tokens: Jagged, start: int, stop: int) -> Jagged:
    """Rows [start, stop), as views."""
    offsets = tokens.offsets[start : stop + 1]
    return Jagged(tokens.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])


def _nothing(device: torch.device) -> ModelInputs:
    zero, none = torch.zeros(1, 1, dtype=torch.int64, device=device), torch.zeros(0, dtype=torch.int64, device=device)
    return ModelInputs(zero, zero, RowBlocks((zero,), zero[0]), none, none)


def _responses(
    tokens: Jagged, response_lengths: torch.Tensor, starts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each response token: its predictor's place where row i begins at starts[i], and its own place in `tokens`."""
    first = tokens.lengths - response_lengths  # of the response, within its row
    row = torch.repeat_interleave(torch.arange(len(response_lengths)), response_lengths)
    within = torch.arange(len(row)) - (response_lengths.cumsum(0) - response_lengths)[row] + first[row]
    return starts[row] + within - 1, tokens.offsets[row] + within
