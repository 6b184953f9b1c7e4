"""Rows as inputs of a model: every token in its place, each response token after its predictor, in both layouts."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.fsdp.inputs import joined_inputs, padded_inputs, rows_between

CPU = torch.device("cpu")
ROWS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=12)
"""Lengths of prompts and responses."""


def rows_of(lengths: list[tuple[int, int]]) -> tuple[Jagged, torch.Tensor]:
    tokens, at = [], 0
    for prompt, response in lengths:
        tokens.append(torch.arange(at, at + prompt + response, dtype=torch.int32))
        at += 100  # a token's number encodes its row and its place
    return Jagged.from_rows(tokens), torch.tensor([response for _, response in lengths])


@given(ROWS)
def test_joined_rows_keep_their_order_and_count_again(lengths: list[tuple[int, int]]) -> None:
    tokens, responses = rows_of(lengths)
    inputs = joined_inputs(tokens, responses, CPU)
    expected = [int(token) for row in tokens.rows() for token in row[:-1]]
    assert inputs.token_ids[0].tolist() == (expected or [0])
    assert inputs.positions is not None
    assert inputs.positions[0].tolist() == ([token % 100 for token in expected] or [0])
    _check_responses(inputs.token_ids.flatten(), inputs.predicting, inputs.targets, tokens, responses)


@given(ROWS)
def test_blocks_hold_each_token_once_where_its_slot_states(lengths: list[tuple[int, int]]) -> None:
    inputs = joined_inputs(*rows_of(lengths), CPU)
    assert inputs.row_blocks is not None
    ids, blocks = inputs.token_ids[0], inputs.row_blocks
    slots = torch.cat([block.flatten() for block in blocks.blocks])
    assert slots[blocks.slot_of_token].tolist() == list(range(len(ids)))
    for block in blocks.blocks:
        for row in ids[block].tolist():
            own = list(dict.fromkeys(row))
            assert own == list(range(own[0], own[0] + len(own))), "one row, in order"
            assert set(row[len(own) :]) <= {own[-1]}, "behind its end stands its last token"


@given(ROWS)
def test_padded_rows_stand_side_by_side(lengths: list[tuple[int, int]]) -> None:
    tokens, responses = rows_of(lengths)
    inputs = padded_inputs(tokens, responses, CPU)
    assert inputs.row_blocks is None
    for sequence, row in zip(inputs.token_ids, tokens.rows(), strict=False):
        assert sequence[: len(row) - 1].tolist() == row[:-1].tolist()
    _check_responses(inputs.token_ids.flatten(), inputs.predicting, inputs.targets, tokens, responses)


def test_no_rows_are_one_token_of_which_nothing_is_asked() -> None:
    none = Jagged(torch.zeros(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int64))
    for make in (joined_inputs, padded_inputs):
        inputs = make(none, torch.zeros(0, dtype=torch.int64), CPU)
        assert inputs.token_ids.shape == (1, 1)
        assert inputs.predicting.shape == inputs.targets.shape == (0,)


def test_rows_between_are_those_rows() -> None:
    tokens, _ = rows_of([(1, 2), (3, 4), (2, 2)])
    chosen = rows_between(tokens, 1, 3)
    assert [row.tolist() for row in chosen.rows()] == [row.tolist() for row in tokens.rows()[1:]]
    assert len(rows_between(tokens, 3, 3)) == 0


def _check_responses(
    ids: torch.Tensor, predicting: torch.Tensor, targets: torch.Tensor, tokens: Jagged, responses: torch.Tensor
) -> None:
    rows = zip(tokens.rows(), responses.tolist(), strict=True)
    wanted = [int(token) for row, response in rows if response for token in row[-response:]]
    assert targets.tolist() == wanted
    assert (ids[predicting] + 1).tolist() == wanted
