"""Generalised advantage estimation: by hand, by a loop, and what it comes to where it must be something simpler."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.algorithms.advantages.gae import gae
from rljob_workers.tensors.columns import Column

from .rows import Row, as_rows, as_tokens, make_row, some_rows, whitened_by_hand


def found(
    rows: Sequence[Row],
    gamma: float = 1.0,
    trace_decay: float = 1.0,
    *,
    bootstraps: bool = True,
    whitens: bool = False,
) -> torch.Tensor:
    """Advantages and returns, [2, tokens]."""
    columns = gae(as_rows(rows), gamma=gamma, trace_decay=trace_decay, bootstraps=bootstraps, whitens=whitens)
    assert set(columns) == {Column.ADVANTAGES, Column.RETURNS}
    return torch.stack([columns[Column.ADVANTAGES], columns[Column.RETURNS]])


@pytest.mark.parametrize(
    ("row", "advantages", "returns"),
    [
        # gamma 0.5, lambda 0.5, so that each later delta counts a quarter.
        # delta: 0 + 0.5 x 0.4 - 0.2 = 0; 0 + 0.5 x 0.6 - 0.4 = -0.1; 1 - 0.6 = 0.4
        pytest.param(
            make_row(1.0, [1, 1, 1], [0.2, 0.4, 0.6]), [0.0, 0.0, 0.4], [0.2, 0.4, 1.0], id="it ended by itself"
        ),
        # The last: 1 + 0.5 x 0.6 - 0.6 = 0.7; -0.1 + 0.7 / 4 = 0.075; 0.075 / 4
        pytest.param(
            make_row(1.0, [1, 1, 1], [0.2, 0.4, 0.6], cut_off=True),
            [0.01875, 0.075, 0.7],
            [0.21875, 0.475, 1.3],
            id="it was cut off, and would have gone on",
        ),
        # The tool's token, whose value is anything, is not there: 0.5 x 0.6 - 0.2 = 0.1, and a quarter of 0.4.
        pytest.param(
            make_row(1.0, [1, 0, 1, 0], [0.2, 9.0, 0.6, 9.0]),
            [0.2, 0.0, 0.4, 0.0],
            [0.4, 0.0, 1.0, 0.0],
            id="a tool wrote in between and at the end",
        ),
        # delta: -0.1 + 0.5 x 0.4 - 0.2 = -0.1; 1 - 0.2 - 0.4 = 0.4
        pytest.param(make_row(1.0, [1, 1], [0.2, 0.4], [0.1, 0.2]), [0.0, 0.4], [0.2, 0.8], id="tokens with penalties"),
        pytest.param(make_row(5.0, [1, 1], [0.2, 0.4], valid=False), [0.0, 0.0], [0.0, 0.0], id="it was not scored"),
        pytest.param(make_row(5.0, [0, 0], [0.2, 0.4]), [0.0, 0.0], [0.0, 0.0], id="the model drew nothing"),
    ],
)
def test_by_hand(row: Row, advantages: list[float], returns: list[float]) -> None:
    before, after = make_row(3.0, [1, 1], [1.0, 1.0]), make_row(-2.0, [1], [1.0])
    of_row = slice(2, 2 + len(row.masks))
    torch.testing.assert_close(found([row], 0.5, 0.5), torch.tensor([advantages, returns]))
    torch.testing.assert_close(found([before, row, after], 0.5, 0.5)[:, of_row], torch.tensor([advantages, returns]))


@given(some_rows(), st.floats(0.1, 1), st.floats(0, 1))
def test_answers_that_were_cut_off_are_as_others_where_nothing_is_expected_after_them(
    rows: list[Row], gamma: float, trace_decay: float
) -> None:
    ended = [Row(row.reward, row.masks, row.values, row.penalties, cut_off=False, valid=row.valid) for row in rows]
    assert torch.equal(found(rows, gamma, trace_decay, bootstraps=False), found(ended, gamma, trace_decay))


def by_a_loop(
    rows: Sequence[Row], gamma: float, trace_decay: float
) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
    advantages, returns = {}, {}
    for number, row in enumerate(rows):
        rewards = row.token_rewards()
        following_value = row.values[row.drawn[-1]] if row.cut_off and row.drawn else 0.0
        following = 0.0
        for place in reversed(row.drawn):
            delta = rewards[place] + gamma * following_value - row.values[place]
            following = advantages[number, place] = delta + gamma * trace_decay * following
            following_value = row.values[place]
            returns[number, place] = following + row.values[place]
    return advantages, returns


@given(some_rows(), st.floats(0.1, 1), st.floats(0, 1), st.booleans())
def test_it_is_the_recursion_backwards_over_drawn_tokens(
    rows: list[Row], gamma: float, trace_decay: float, whitens: bool
) -> None:
    advantages, returns = by_a_loop(rows, gamma, trace_decay)
    if whitens:
        advantages = whitened_by_hand(advantages)
    expected = torch.stack([as_tokens(rows, advantages), as_tokens(rows, returns)])
    torch.testing.assert_close(
        found(rows, gamma, trace_decay, whitens=whitens).double(), expected, atol=1e-4 if whitens else 1e-5, rtol=1e-5
    )


def test_a_long_response_is_as_exact_as_a_short_one() -> None:
    chance = torch.Generator().manual_seed(0)
    length = 16_384
    values, penalties = torch.randn(2, length, generator=chance).tolist()
    row = make_row(1.0, [1] * length, values, penalties)
    advantages, returns = by_a_loop([row], 0.999, 0.95)
    expected = torch.stack([as_tokens([row], advantages), as_tokens([row], returns)])
    torch.testing.assert_close(found([row], 0.999, 0.95).double(), expected, atol=2e-6, rtol=1e-6)


@given(some_rows())
def test_without_values_discount_and_penalties_every_drawn_token_has_the_reward(rows: list[Row]) -> None:
    rows = [make_row(row.reward, row.masks, cut_off=row.cut_off, valid=row.valid) for row in rows]
    expected = as_tokens(rows, {(n, place): row.reward for n, row in enumerate(rows) for place in row.drawn})
    torch.testing.assert_close(found(rows).double(), torch.stack([expected, expected]))


@given(some_rows(), st.floats(0.1, 1))
def test_a_critic_that_is_right_leaves_no_advantage(rows: list[Row], gamma: float) -> None:
    """Values that are the discounted rewards to come; of answers that ended."""
    right = []
    for row in rows:
        values, to_come = [0.0] * len(row.masks), 0.0
        for place in reversed(row.drawn):
            values[place] = to_come = row.token_rewards()[place] + gamma * to_come
        right.append(Row(row.reward, row.masks, values, row.penalties, cut_off=False, valid=row.valid))
    advantages, returns = found(right, gamma, 0.9)
    assert float(advantages.abs().max()) < 1e-4
    torch.testing.assert_close(returns, as_rows(right).values)


@given(some_rows(), st.floats(0.1, 1))
def test_what_follows_does_not_count_where_nothing_is_traced(rows: list[Row], gamma: float) -> None:
    """lambda 0: the reward of a row reaches its last token alone."""
    others = [make_row(row.reward + 1, row.masks, row.values, row.penalties, valid=row.valid) for row in rows]
    same = [make_row(row.reward, row.masks, row.values, row.penalties, valid=row.valid) for row in rows]
    moved = (found(others, gamma, 0.0)[0] - found(same, gamma, 0.0)[0]).double()
    expected = as_tokens(rows, {(n, row.drawn[-1]): 1.0 for n, row in enumerate(rows) if row.drawn})
    torch.testing.assert_close(moved, expected, atol=1e-5, rtol=0)


@given(some_rows())
def test_whitening_moves_no_return(rows: list[Row]) -> None:
    plain, white = found(rows, 0.9, 0.9), found(rows, 0.9, 0.9, whitens=True)
    assert torch.equal(plain[1], white[1])
    counted = as_rows(rows).masks.masks > 0
    assert not bool(white[0][~counted].any())
    if int(counted.sum()) > 1 and float(plain[0][counted].std()) > 1e-2:
        assert abs(float(white[0][counted].mean())) < 1e-4
        assert float(white[0][counted].std()) == pytest.approx(1.0, abs=1e-3)
