"""REINFORCE++ with and without a baseline: by hand, by a loop, and with what they come to where rows are alike."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings

from rljob_workers.algorithms.advantages.reinforce import reinforce_plus_plus, reinforce_plus_plus_baseline
from rljob_workers.tensors.columns import Column

from .rows import Row, as_rows, as_tokens, make_row, some_rows, whitened_by_hand


def returns_to_go(rows: Sequence[Row]) -> torch.Tensor:
    return reinforce_plus_plus(as_rows(rows))[Column.ADVANTAGES]


def against_groups(rows: Sequence[Row], samples: int = 2) -> torch.Tensor:
    return reinforce_plus_plus_baseline(as_rows(rows, samples))[Column.ADVANTAGES]


def test_returns_by_hand() -> None:
    """Returns 1 - 0.5 - 0, 1 - 0.5, 0: mean 1/3, unbiased variance 1/12, so that they are 1/6 and -1/3 by 0.288675."""
    rows = [make_row(1.0, [1, 0, 1], penalties=[0.0, 7.0, 0.5]), make_row(0.0, [1])]
    torch.testing.assert_close(returns_to_go(rows), torch.tensor([0.57735, 0.0, 0.57735, -1.154701]))


def test_baselines_by_hand() -> None:
    """+-0.5 at two tokens and at one: mean 1/6, unbiased variance 1/3. The second group has one valid row, and so 0."""
    rows = [make_row(1.0, [1, 1]), make_row(0.0, [1]), make_row(9.0, [1]), make_row(5.0, [1], valid=False)]
    values = torch.tensor([0.5, 0.5, -0.5, 0.0])
    expected = (values - values.mean()) / values.std()
    torch.testing.assert_close(against_groups(rows), torch.cat([expected, torch.zeros(1)]))


def test_penalties_are_taken_off_before_the_group_is_looked_at() -> None:
    rows = [make_row(1.0, [1, 1], penalties=[0.5, 0.5]), make_row(0.0, [1]), make_row(1.0, [1]), make_row(0.0, [1])]
    found = against_groups(rows)
    others = against_groups([make_row(0.0, [1, 1]), *rows[1:]])
    assert torch.equal(found, others)


@given(some_rows())
def test_returns_are_those_of_a_loop(rows: list[Row]) -> None:
    returns: dict[tuple[int, int], float] = {}
    for number, row in enumerate(rows):
        to_come = 0.0
        for place in reversed(row.drawn):
            to_come = returns[number, place] = to_come + row.token_rewards()[place]
    expected = as_tokens(rows, whitened_by_hand(returns))
    torch.testing.assert_close(returns_to_go(rows).double(), expected, atol=1e-3, rtol=1e-4)


@settings(max_examples=30)  # of whole batches each
@given(some_rows(samples=3))
def test_baselines_are_those_of_a_loop(rows: list[Row]) -> None:
    values: dict[tuple[int, int], float] = {}
    for first in range(0, len(rows), 3):
        group = {number: row for number, row in enumerate(rows) if first <= number < first + 3 and row.valid}
        rewards = {
            number: row.reward - sum(row.penalties[place] for place in row.drawn) for number, row in group.items()
        }
        for number, row in group.items():
            mean = sum(rewards.values()) / len(group)
            values |= {(number, place): rewards[number] - mean for place in row.drawn}
    expected = as_tokens(rows, whitened_by_hand(values))
    torch.testing.assert_close(against_groups(rows, 3).double(), expected, atol=2e-2, rtol=1e-3)


@settings(max_examples=30)  # of whole batches each
@given(some_rows())
def test_without_penalties_every_drawn_token_of_a_row_has_one_number(rows: list[Row]) -> None:
    rows = [make_row(row.reward, row.masks, valid=row.valid) for row in rows]
    found = as_rows(rows)
    for number, values in enumerate(torch.split(returns_to_go(rows), found.response_lengths.tolist())):
        assert len({values[place].item() for place in rows[number].drawn}) <= 1


@pytest.mark.parametrize("estimate", [returns_to_go, against_groups])
@pytest.mark.parametrize(
    "rows", [[make_row(1.0, [1])] * 2, [make_row(1.0, [0])] * 2, [make_row(1.0, [1], valid=False)] * 2]
)
def test_rows_that_are_alike_teach_nothing(estimate: object, rows: list[Row]) -> None:
    assert callable(estimate)
    assert not bool(estimate(rows).any())
