"""What is counted of each row: packed numbers, rates, and the table of a checkpoint."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.transfer_queue.pass_rates import MAX_ROWS, UNSCORED, GroupScore, PassRates, packed_rates, rates_table
from rljob_workers.transfer_queue.types import is_table_of_draws, table_of_draws, without_rates

RATE = struct.Struct("<IIIId")

PACKED = (
    RATE.pack(2, 8, 6, 0, 6.5) + RATE.pack(0, 0, 0, 0, 0.0) + RATE.pack(1, 0, 0, 0, 0.0) + RATE.pack(1, 4, 0, 0, -1.0)
)


def test_rates_of_rows_that_were_drawn_and_of_others() -> None:
    rates = PassRates.parse(PACKED, 6)
    assert len(rates) == 6
    assert rates.draws.tolist() == [2, 0, 1, 1, 0, 0]
    assert rates.samples.tolist() == [8, 0, 0, 4, 0, 0]
    assert rates.pass_rate.tolist() == pytest.approx([0.75, np.nan, np.nan, 0.0, np.nan, np.nan], nan_ok=True)
    assert rates.mean_reward.tolist() == pytest.approx([0.8125, np.nan, np.nan, -0.25, np.nan, np.nan], nan_ok=True)


def test_rows_beyond_the_data_are_left_out() -> None:
    assert PassRates.parse(PACKED, 2).samples.tolist() == [8, 0]


@given(st.lists(st.floats(-1e6, 1e6), max_size=20), st.floats(-2, 2))
def test_the_score_of_a_group_is_what_a_loop_adds_up(rewards: list[float], pass_reward: float) -> None:
    total, passed = 0.0, 0
    for reward in rewards:
        total += reward
        passed += reward >= pass_reward
    score = GroupScore.of(rewards, pass_reward)
    assert (score.samples, score.passed) == (len(rewards), passed)
    assert score.total == pytest.approx(total)
    assert struct.unpack("<IId", score.pack()) == (score.samples, score.passed, score.total)


def test_a_group_without_a_score_adds_nothing() -> None:
    assert UNSCORED.pack() == bytes(16)


def test_the_table_of_a_checkpoint_has_the_rows_that_were_drawn() -> None:
    assert rates_table(PACKED) == [[0, 2, 8, 6, 6.5], [2, 1, 0, 0, 0.0], [3, 1, 4, 0, -1.0]]
    table = table_of_draws(4, [], b"{}", [], [b"10", b"3", b"2", b"1"], PACKED)
    assert is_table_of_draws(table)
    assert json.loads(table)["curriculum"] == {"chosen": [[2, 1], [10, 3]], "rates": rates_table(PACKED)}


COUNT = st.integers(0, 2**32 - 1)


@given(st.lists(st.tuples(COUNT, COUNT, COUNT, st.just(0), st.floats(-1e9, 1e9)), max_size=20))
def test_a_table_gives_back_the_rates_that_it_was_made_of(numbers: list[tuple[int, int, int, int, float]]) -> None:
    drawn = [one if one[0] else (0, 0, 0, 0, 0.0) for one in numbers]
    while drawn and not drawn[-1][0]:
        drawn.pop()
    packed = b"".join(RATE.pack(*one) for one in drawn)
    table = table_of_draws(4, [], b"{}", [], [b"2", b"1"], packed)
    rest, rates = without_rates(table)
    assert rates == packed
    assert json.loads(rest) == json.loads(table) | {"curriculum": {"chosen": [[2, 1]], "rates": []}}


@pytest.mark.parametrize(
    "rates",
    [
        3,
        {},
        [3],
        [[1, 2]],
        [[1, 1, 1, 1, 0.5], [2, 1]],
        [["a", 1, 1, 1, 0.5]],
        [[-1, 1, 1, 1, 0.5]],
        [[MAX_ROWS, 1, 1, 1, 0.5]],
        [[1, 2**32, 1, 1, 0.5]],
        [[1, None, 1, 1, 0.5]],
    ],
)
def test_what_is_no_table_of_rates_is_left_to_the_queue(rates: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        packed_rates(rates)
    text = json.dumps({"curriculum": {"chosen": [], "rates": rates}}).encode()
    assert without_rates(text) == (text, b"")


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"{", b'{"curriculum": 3}', b'{"cursor": 3}'])
def test_a_table_without_a_curriculum_stays_as_it_is(text: bytes) -> None:
    assert without_rates(text) == (text, b"")
