"""A clock of the time in which its owner could look."""

import pytest

from rljob_api.machine.attended_time import FROZEN_SECONDS, AttendedClock


@pytest.mark.parametrize(
    ("ticks", "expected"),
    [
        pytest.param([1.0, 1.5, 2.0], [1.0, 1.5, 2.0], id="all of the time between ticks that are near"),
        pytest.param([1.0, 900.0, 901.0], [1.0, 3.0, 4.0], id="no more than the longest step of what was slept"),
        pytest.param([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], id="nothing between two ticks at the same time"),
    ],
)
def test_attended_seconds(ticks: list[float], expected: list[float]) -> None:
    now = [0.0]
    clock = AttendedClock(2.0, lambda: now[0])
    seen = []
    for now[0] in ticks:
        seen.append(clock.tick())
        assert clock.seconds == seen[-1]
    assert seen == expected


def test_silence_that_began_before_a_freeze_counts_its_attended_part_only() -> None:
    now = [0.0]
    clock = AttendedClock(1.0, lambda: now[0])
    now[0] = 0.5
    asked_at = clock.tick()
    for now[0] in (1.0, 500.0, 500.5):
        clock.tick()
    assert clock.seconds - asked_at == 0.5 + 1.0 + 0.5


@pytest.mark.parametrize(
    ("ticks", "now", "expected"),
    [
        pytest.param([101.0, 102.0], 103.0, 100.0, id="since it was made, where it was never stopped"),
        pytest.param([101.0], 101.0 + FROZEN_SECONDS, 100.0, id="a gap of that length is no freeze yet"),
        pytest.param([101.0, 200.0], 202.0, 200.0, id="since the first tick after a freeze"),
        pytest.param([101.0, 200.0, 203.0], 204.0, 200.0, id="later ticks that are near change nothing"),
        pytest.param([101.0], 150.0, 150.0, id="since now, while no tick has come after a freeze"),
    ],
)
def test_running_since(ticks: list[float], now: float, expected: float) -> None:
    time = [100.0]
    clock = AttendedClock(0.4, lambda: time[0])
    for time[0] in ticks:
        clock.tick()
    time[0] = now
    assert clock.running_since == expected
