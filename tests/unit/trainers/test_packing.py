"""The plan of a micro-batch: every token once, every slot sees what its row sees, nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.micro_batches import (
    FREE_PADDING_TOKENS,
    PADDING_SHARE,
    SHARED_SEQUENCE_TOKENS,
    PackedRows,
    pack,
)

Row = tuple[list[int], list[int]]
"""Prompt and response."""


@st.composite
def rows(draw: st.DrawFn, longest: int = 24) -> list[Row]:
    token = st.integers(0, 3)
    prompts = draw(st.lists(st.lists(token, min_size=1, max_size=7), min_size=1, max_size=4))
    picks = draw(st.lists(st.integers(0, len(prompts) - 1), min_size=1, max_size=20))
    return [(prompts[pick], draw(st.lists(token, max_size=longest))) for pick in picks]


def plan_of(batch: list[Row]) -> tuple[torch.Tensor, PackedRows]:
    tokens = Jagged.from_rows([torch.tensor(prompt + response, dtype=torch.int32) for prompt, response in batch])
    return tokens.values, pack(tokens.values, tokens.offsets, torch.tensor([len(response) for _, response in batch]))


def visible_tokens(plan: PackedRows, tokens: torch.Tensor) -> list[list[int]]:
    """For each flat token what it sees, in the order of positions."""
    seen: list[list[int]] = []
    slots = [(block, sequence, column) for block in plan.blocks for sequence, column in np.ndindex(*block.slots.shape)]
    for token, slot in enumerate(plan.slot_of_token.tolist()):
        block, sequence, column = slots[slot]
        assert int(block.slots[sequence, column]) == token
        if block.mask is None:
            columns = list(range(column + 1))
        else:
            columns = block.mask[sequence, 0, column].nonzero()[:, 0].tolist()
        flat = block.slots[sequence, columns]
        flat = flat[plan.positions[flat].argsort()]
        assert plan.positions[flat].tolist() == list(range(len(columns)))
        seen.append(tokens[plan.token_index[flat]].tolist())
    return seen


@pytest.mark.parametrize("longest", [8, 60])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_each_response_token_is_predicted_from_exactly_what_precedes_it_in_its_row(
    longest: int, data: st.DataObject
) -> None:
    batch = data.draw(rows(longest))
    tokens, plan = plan_of(batch)
    seen = visible_tokens(plan, tokens)
    expected = [
        (prompt + response[:index], response[index]) for prompt, response in batch for index in range(len(response))
    ]
    predictors = plan.predicting[plan.predictor].tolist()
    targets = tokens[plan.target_index].tolist()
    assert list(zip((seen[token] for token in predictors), targets, strict=True)) == expected


@st.composite
def rows_of_long_prompts(draw: st.DrawFn) -> list[Row]:
    prompts = [
        [draw(st.integers(0, 3)) for _ in range(8)] * draw(st.integers(1, 12)) for _ in range(draw(st.integers(1, 4)))
    ]
    picks = draw(st.lists(st.integers(0, len(prompts) - 1), min_size=1, max_size=24))
    return [(prompts[pick], draw(st.lists(st.integers(0, 3), max_size=12))) for pick in picks]


@settings(max_examples=25, deadline=None)
@given(batch=rows_of_long_prompts())
def test_rows_that_share_a_long_prompt_see_it_and_their_own_tokens_alone(batch: list[Row]) -> None:
    tokens, plan = plan_of(batch)
    seen = visible_tokens(plan, tokens)
    expected = [prompt + response[:index] for prompt, response in batch for index in range(len(response))]
    assert [seen[token] for token in plan.predicting[plan.predictor].tolist()] == expected


@settings(max_examples=25, deadline=None)
@given(batch=rows())
def test_a_prompt_is_computed_once_and_last_tokens_never(batch: list[Row]) -> None:
    _, plan = plan_of(batch)
    distinct = {tuple(prompt) for prompt, _ in batch}
    own = sum(max(len(response) - 1, 0) for _, response in batch)
    assert plan.token_index.numel() == sum(len(prompt) for prompt in distinct) + own


@settings(max_examples=12, deadline=None)
@given(batch=rows())
def test_the_same_rows_give_the_same_plan(batch: list[Row]) -> None:
    first, second = plan_of(batch)[1], plan_of(batch)[1]
    for name in ("token_index", "positions", "slot_of_token", "predicting", "predictor", "target_index"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    for one, other in zip(first.blocks, second.blocks, strict=True):
        assert torch.equal(one.slots, other.slots)


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 400), min_size=1, max_size=120))
def test_padding_of_long_rows_stays_small(lengths: list[int]) -> None:
    _, plan = plan_of([([1], [2] * length) for length in lengths])
    for block in plan.blocks:
        if block.mask is None:
            used = sum(sorted(lengths, reverse=True)[: block.slots.shape[0]])
            lengths = sorted(lengths, reverse=True)[block.slots.shape[0] :]
            padding = block.slots.numel() - used
            assert padding <= max(FREE_PADDING_TOKENS, block.slots.numel() // PADDING_SHARE)


def test_equal_long_rows_are_dense_and_need_no_mask() -> None:
    _, plan = plan_of([([index], [2] * 40) for index in range(6)])
    (block,) = plan.blocks
    assert block.slots.shape == (6, 40)
    assert block.mask is None


def test_short_rows_of_a_prompt_share_a_sequence() -> None:
    _, plan = plan_of([([7, 8, 9, 1], [index, 2, 3, 4]) for index in range(16)])
    (block,) = plan.blocks
    assert block.slots.shape == (1, 4 + 16 * 3)
    assert block.slots.shape[1] <= SHARED_SEQUENCE_TOKENS


def test_short_responses_to_a_long_prompt_share_a_sequence_of_its_own() -> None:
    _, plan = plan_of([([prompt] * 100, [index, 2, 3, 4]) for prompt in (1, 2) for index in range(16)])
    (block,) = plan.blocks
    assert block.slots.shape == (2, 100 + 16 * 3)


def test_long_responses_to_a_shared_prompt_keep_sequences_of_their_own() -> None:
    _, plan = plan_of([([1] * 40, [2] * 61) for _ in range(16)])
    (block,) = plan.blocks
    assert block.slots.shape == (16, 100)
    assert block.mask is None


def test_a_window_of_a_slice_is_planned_by_the_slices_own_indices() -> None:
    tokens = Jagged.from_rows([torch.tensor(row, dtype=torch.int32) for row in ([1, 2], [3, 4, 5], [6, 7])])
    plan = pack(tokens.values, tokens.offsets[1:3], torch.tensor([2]))
    assert tokens.values[plan.token_index].tolist() == [3, 4]
    assert tokens.values[plan.target_index].tolist() == [4, 5]


def test_a_row_without_a_prompt_is_refused_by_its_number() -> None:
    with pytest.raises(ValueError, match="row 1 has 2 response tokens of 2 tokens, but a row needs at least"):
        plan_of([([1], [2]), ([], [3, 4])])


def test_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="0 rows"):
        pack(torch.zeros(0), torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
