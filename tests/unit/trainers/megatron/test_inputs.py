"""Packed inputs of Megatron: which tokens a rank computes, what it is asked of them, and where the answers belong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.megatron.inputs import Context, PackedInputs, packed_inputs
from rljob_workers.trainers.micro_batches import RowRange

HOST = torch.device("cpu")


def packed(rows: list[list[int]], responses: list[int], multiple: int, context: Context) -> PackedInputs:
    """All rows but the first, which belongs to another micro-batch."""
    tokens = Jagged.from_rows([torch.tensor(row, dtype=torch.int32) for row in [[90, 91], *rows]])
    part = RowRange(1, len(rows) + 1, 1, 1 + sum(responses))
    return packed_inputs(tokens, torch.tensor([1, *responses]), part, multiple, context, HOST)


ROWS, RESPONSES = [[1, 2, 3, 4, 5], [9], [6, 7]], [3, 0, 1]
"""Computed are 1 to 4, nothing, and 6."""
BY_HAND = [
    pytest.param(1, Context(), [1, 2, 3, 4, 6], [0, 4, 5], [1, 2, 3, 4], [3, 4, 5, 7], [0, 1, 2, 3], id="no padding"),
    pytest.param(
        3, Context(), [1, 2, 3, 4, 0, 0, 6, 0, 0], [0, 6, 9], [1, 2, 3, 6], [3, 4, 5, 7], [0, 1, 2, 3],
        id="rows in multiples of three",
    ),
    pytest.param(4, Context(0, 2), [1, 4, 6, 0], [0, 4, 8], [1, 2], [5, 7], [2, 3], id="both ends of each row"),
    pytest.param(4, Context(1, 2), [2, 3, 0, 0], [0, 4, 8], [0, 1], [3, 4], [0, 1], id="the middle of each row"),
    pytest.param(
        8, Context(1, 2), [3, 4, 0, 0, 0, 0, 0, 0], [0, 8, 16], [0, 1], [4, 5], [1, 2], id="two tokens in a chunk"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("multiple", "context", "ids", "ends", "predicting", "targets", "slots"), BY_HAND)
def test_ranks_by_hand(
    multiple: int,
    context: Context,
    ids: list[int],
    ends: list[int],
    predicting: list[int],
    targets: list[int],
    slots: list[int],
) -> None:
    found = packed(ROWS, RESPONSES, multiple, context)
    assert found.token_ids.tolist() == [ids]
    assert found.ends.tolist() == ends
    assert (found.predicting.tolist(), found.targets.tolist(), found.slots.tolist()) == (predicting, targets, slots)
    assert found.num_responses == 4
    assert found.longest == 256
    assert (found.blocks is None) == (context.size > 1)


@pytest.mark.parametrize("rows", [[], [[9]], [[9], [8]]], ids=["no row", "a row of one token", "two of them"])
@pytest.mark.parametrize("context", [Context(), Context(0, 2), Context(1, 2)], ids=str)
def test_rows_without_anything_to_compute_are_a_row_of_padding(rows: list[list[int]], context: Context) -> None:
    found = packed(rows, [0] * len(rows), 4, context)
    assert found.token_ids.tolist() == [[0] * (4 // context.size)]
    assert found.ends.tolist() == [0, 4]
    assert found.num_responses == len(found.predicting) == len(found.targets) == len(found.slots) == 0


@given(
    st.lists(st.integers(1, 30).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1))), max_size=6),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_every_response_token_is_asked_of_one_rank_that_has_the_token_before_it(
    lengths: list[tuple[int, int]], size: int, tensor: int
) -> None:
    """Tokens are their own numbers, so that what predicts t is t - 1."""
    first, rows = 1000, []
    for length, _ in lengths:
        rows.append(list(range(first, first + length)))
        first += length + 1
    responses = [response for _, response in lengths]
    multiple = tensor * (2 * size if size > 1 else 1)
    ranks = [packed(rows, responses, multiple, Context(rank, size)) for rank in range(size)]
    for found in ranks:
        assert torch.equal(found.token_ids[0][found.predicting], found.targets - 1)
        assert len(found.token_ids[0]) * size == int(found.ends[-1])
        assert not (found.ends.diff() % multiple).any()
        assert torch.equal(found.ends, ranks[0].ends)
    slots = torch.cat([found.slots for found in ranks])
    targets = torch.cat([found.targets for found in ranks])
    assert sorted(slots.tolist()) == list(range(sum(responses)))
    wanted = [token for row, response in zip(rows, responses, strict=True) for token in row[len(row) - response :]]
    assert targets[slots.argsort()].tolist() == wanted
