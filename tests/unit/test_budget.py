"""A budget: a burst is free, what comes on and on is spaced, and who rests gets the burst back."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.rate_limit import Budget, Rate

RATE = Rate(burst=5, every_seconds=2.0)


def spent(budget: Budget, until: float, start: float = 0.0) -> list[float]:
    """When someone who always wants to may; a budget without an end would never come to `until`."""
    now = start
    times: list[float] = []
    while (now := budget.free_at(now)) <= until and len(times) < 100:
        budget.spend(now)
        times.append(now)
    return times


def test_a_burst_is_free_and_then_one_in_so_long() -> None:
    assert spent(Budget(RATE), 6.0) == [0.0] * 5 + [2.0, 4.0, 6.0]


def test_who_rests_gets_the_burst_back() -> None:
    budget = Budget(RATE)
    spent(budget, 6.0)
    assert not budget.is_whole(15.0)
    assert budget.is_whole(16.0)
    assert spent(budget, 100.0, start=100.0) == [100.0] * 5


@given(st.lists(st.floats(0, 100), max_size=200))
def test_no_one_gets_more_than_the_burst_and_the_rate(requests: list[float]) -> None:
    budget, now, done = Budget(RATE), 0.0, []
    for pause in requests:
        now += pause / 50
        if budget.free_at(now) <= now:
            budget.spend(now)
            done.append(now)
    for index, begin in enumerate(done):
        for count, end in enumerate(done[index:], 1):
            assert count <= RATE.burst + (end - begin) / RATE.every_seconds + 1e-6
