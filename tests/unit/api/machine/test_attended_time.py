"""Time in which somebody could look."""

import pytest

from rljob_api.machine.attended_time import AttendedTime


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        pytest.param([1.0, 1.5, 2.0], [1.0, 0.5, 0.5], id="all of the time between looks that are near"),
        pytest.param([1.0, 900.0, 901.0], [1.0, 2.0, 1.0], id="no more than the longest of what was slept"),
    ],
)
def test_attended_seconds(looks: list[float], expected: list[float]) -> None:
    now = [0.0]
    attended = AttendedTime(2.0, lambda: now[0])
    seen = []
    for now[0] in looks:
        seen.append(attended.look())
        assert attended.looked_at == now[0]
    assert seen == expected
