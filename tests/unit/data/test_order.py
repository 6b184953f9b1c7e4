"""The order of a pass: a permutation, new in each pass, the same everywhere."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.data.prompts import shuffled_position


def order(size: int, *, seed: int = 0, pass_number: int = 0) -> list[int]:
    return [shuffled_position(position, size, seed=seed, pass_number=pass_number) for position in range(size)]


@given(st.integers(1, 300), st.integers(0, 2**64), st.integers(0, 2**40))
def test_every_item_comes_once_in_a_pass(size: int, seed: int, pass_number: int) -> None:
    assert sorted(order(size, seed=seed, pass_number=pass_number)) == list(range(size))


def test_passes_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(order(50, seed=seed, pass_number=number)) for seed in range(3) for number in range(3)}
    assert len(orders) == 9
    assert tuple(range(50)) not in orders


def test_an_item_comes_anywhere_over_the_passes() -> None:
    firsts = [shuffled_position(0, 7, seed=1, pass_number=number) for number in range(700)]
    assert all(50 <= firsts.count(item) <= 150 for item in range(7))


def test_the_order_is_pinned() -> None:
    """A resumed job goes on in the order that it began with, whatever was installed in between."""
    assert order(8, seed=7, pass_number=2) == [5, 0, 1, 7, 2, 6, 3, 4]
    assert shuffled_position(123_456, 10_000_000, seed=7, pass_number=2) == 1_690_006
