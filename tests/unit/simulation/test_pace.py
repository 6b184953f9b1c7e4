"""The time that is spent: by tokens and rows, at the clock's speed, with pulses on the way."""

from itertools import pairwise

import pytest

from rljob_api.spec.simulation import SimulatedCost
from rljob_workers.simulation.pace import CREDIT_SECONDS, LONGEST_NAP_SECONDS, SimulatedPace


class Clock:
    def __init__(self, too_long: float = 0.0) -> None:
        self.now = 100.0
        self._too_long = too_long

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self._too_long


def make_pace(clock: Clock, speed: float = 1.0) -> SimulatedPace:
    cost = SimulatedCost(seconds_per_token=0.5, seconds_per_row=3)
    return SimulatedPace(cost, speed, clock=lambda: clock.now, sleep=clock.sleep)


@pytest.mark.parametrize(("speed", "expected"), [(1.0, 8.0), (10.0, 0.8), (0.5, 16.0)])
def test_tokens_and_rows_take_their_time_at_the_clocks_speed(speed: float, expected: float) -> None:
    clock = Clock()
    make_pace(clock, speed).spend(tokens=4, rows=2)
    assert clock.now - 100 == pytest.approx(expected)


def test_pulses_are_given_all_along() -> None:
    clock, seen = Clock(), [100.0]
    make_pace(clock).spend(rows=2, progress=lambda: seen.append(clock.now))
    assert max(later - earlier for earlier, later in pairwise(seen)) <= LONGEST_NAP_SECONDS + 1e-9


def test_what_naps_take_too_long_is_not_spent_again() -> None:
    clock = Clock(too_long=0.001)
    pace = make_pace(clock, speed=100)
    for _ in range(1000):
        pace.spend(tokens=1)
    assert clock.now - 100 == pytest.approx(5.0, abs=0.01)


def test_idle_time_is_no_credit() -> None:
    clock = Clock()
    pace = make_pace(clock)
    clock.now += 1000
    pace.spend(tokens=2)
    assert clock.now - 1100 >= 1.0 - CREDIT_SECONDS - 1e-9


def test_what_costs_nothing_takes_no_time() -> None:
    clock = Clock()
    SimulatedPace(SimulatedCost(), 1.0, clock=lambda: clock.now, sleep=clock.sleep).spend(tokens=10**6, rows=10**6)
    assert clock.now == 100
